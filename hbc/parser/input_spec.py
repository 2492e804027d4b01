"""Makes an InputSpec from the notes of a walk through a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hbc.errors import Culprit, UnsupportedOperatorError
from hbc.ir.graph import Graph, Node
from hbc.ir.signature import Column, Frames, InputSpec, Kinds, Sparse, input_layout, keeps_dtype
from hbc.ops.checks import Check, CheckValues
from hbc.ops.columns import Categorize, SelectColumns
from hbc.ops.hashed_categories import HashText
from hbc.ops.missing import ImputeText, MissingText
from hbc.ops.tensor import Cast, Concat
from hbc.parser.frame import Frame, dtype_givers, untouched
from hbc.parser.front_door import Notes

NARROW = 32
"""The fewest bits of integers for which numpy's common dtype with float32 is float64."""

Place = tuple[Node, int]
"""A column of a graph input."""


def found_spec(notes: Notes, graph: Graph, kinds: Kinds, returned: Sequence[int] = ()) -> InputSpec:
    """The notes of one walk as an InputSpec. `graph` is the result of the walk, for input columns of the dtypes `kinds`. `returned`: the
    columns that the model returns in a frame, besides those that the graph returns."""
    layout = zip(graph.inputs, input_layout(kinds).values(), strict=True)
    origin = {(node, i): column for node, columns in layout for i, column in enumerate(columns)}
    text, number = Column(strings=True), Column()
    columns = [text if kind == "str" else number for kind in kinds]
    for x, fact in notes.columns.items():
        for i in _sources([x], origin):
            columns[i] |= fact
    result = graph.outputs.get("transform", ())
    for place in (place for node in result for place in untouched(node) if place is not None):
        if place in origin and place[0].type.dtype != "str":
            columns[origin[place]] |= Column(objects_stay=True, returned=True)
    if not result:
        columns = [replace(column, returned=False) if column.returned else column for column in columns]
    for i, fact in notes.given.items():
        columns[i] |= fact
    if any(column.digits for column in columns):
        for i in _read_as_strings(graph, origin):
            columns[i] = replace(columns[i], digits=False)
    if any(column.numbers_unknown for column in columns):
        for i in _read_as_strings(graph, origin, CATEGORICAL):
            columns[i] = replace(columns[i], numbers_unknown=False)
    frames, sparse, arrays = notes.frames, notes.sparse, notes.arrays
    for i, category in _category_codes(notes, graph, origin, returned, columns).items():
        columns[i] |= category or Column()
        frames |= Frames(rejected=category is None)
    for x in notes.widened:
        if group := _sources([x], origin):
            frames |= Frames(dates=(tuple(group),))
        for i in group:
            columns[i] |= Column(frames_as_f64=True)
    if narrow := _sources(notes.narrow, origin):
        # If nothing else reads the input, narrow integers can be given as float32. Otherwise they are rejected.
        as_f32 = len(narrow) == len(kinds) and not any(column.integer_bits for column in columns) and not frames.by_column
        arrays = replace(arrays, narrow_as_f32=as_f32)
        for i in () if as_f32 else narrow:
            columns[i] |= Column(integer_bits=NARROW)
    if (frames.text_names or frames.no_numbers) and any(_validates(node) for node in graph.nodes):
        frames |= Frames(validated=True)
    if notes.widened_in_frames and _computes_with_integers(graph):
        frames |= Frames(integers_exact=True)
    for place, fact in _roundings(graph, notes.widened_in_frames).items():
        if place in origin:
            columns[origin[place]] |= fact
    if notes.rounds_sparse and any(node.op.jumps for node in graph.nodes):
        sparse |= Sparse(accepted=False)
    dense = [method for method, nodes in graph.outputs.items() if set(nodes) & notes.dense_only]
    sparse |= Sparse(dense_methods=tuple(dense))
    frames |= Frames(named_methods=tuple(m for m, nodes in graph.outputs.items() if set(nodes) & notes.named_only))
    kept = graph.outputs.get(keeps_dtype(tuple(graph.outputs)), ())
    givers = [source for node in kept if node.type.dtype in kinds for source in _given_dtype(node, notes.kept)]
    return InputSpec(tuple(columns), own_dtype=tuple(_sources(givers, origin)), arrays=arrays, frames=frames, sparse=sparse)


def _sources(values: Iterable[Node | Frame], origin: Mapping[Place, int]) -> list[int]:
    """The columns of the model's input that give these values their dtype, ascending."""
    return sorted({origin[place] for x in values for place in dtype_givers(x) if place in origin})


def _validates(node: Node) -> bool:
    """Whether an estimator of scikit-learn looks at columns of the model's input here."""
    return isinstance(node.op, Check) and node.op.owner.startswith("sklearn.") and None not in untouched(node)


PASSING = (Check, Concat, SelectColumns)
"""Operators that hand on their input's values as they are."""


def _computes_with_integers(graph: Graph) -> bool:
    """Whether an operator computes with integers of the input, or a method returns them."""
    given = {node for node in (*graph.inputs, *graph.nodes) if node.type.dtype == "i64" and None not in untouched(node)}
    readers = (node for node in graph.nodes if not given.isdisjoint(node.inputs) and node not in given)
    returned = (node for group in graph.outputs.values() for node in group)
    return any(not isinstance(node.op, Cast) for node in readers) or not given.isdisjoint(returned)


def _roundings(graph: Graph, others: Sequence[Node]) -> dict[Place, Column]:
    """Column of integers → whether the graph makes float32 of them (or of integers computed from them) at once, or through float64.
    `others` do not count: the source reads them from a frame as float64, and from a list as from an array."""
    integers: dict[Node, frozenset[Place]] = {
        node: frozenset(place for place in untouched(node) if place) for node in graph.inputs if node.type.dtype == "i64"
    }
    doubles: dict[Node, frozenset[Place]] = {}
    found: dict[Place, Column] = {}
    for node in graph.nodes if integers else ():
        whole, double = (
            frozenset().union(*(known.get(source, frozenset()) for source in node.inputs)) for known in (integers, doubles)
        )
        if whole and isinstance(node.op, SelectColumns) and None not in (chosen := untouched(node)):
            whole = frozenset(place for place in chosen if place)
        kind = node.type.dtype
        if kind == "i64" and whole:
            integers[node] = whole
        elif isinstance(node.op, Cast) and kind == "f64" and whole:
            doubles[node] = whole
        elif isinstance(node.op, PASSING) and double:
            doubles[node] = double
        elif isinstance(node.op, Cast) and kind == "f32" and node not in others:
            for places, fact in ((whole, Column(f32_at_once=True)), (double, Column(f32_at_once=True, f64_between=True))):
                for place in places:
                    found[place] = found.get(place, Column()) | fact
    return found


def _category_codes(
    notes: Notes, graph: Graph, origin: Mapping[Place, int], returned: Sequence[int], columns: Sequence[Column]
) -> dict[int, Column | None]:
    """Column of categories → what a frame must hold there. None: hbc cannot tell what the source makes of a frame, since another estimator
    reads the column too; if each category is its own place, an array holds for all estimators what a frame would hold. Raises
    UnsupportedOperatorError for the rest."""
    codes = notes.codes
    facts: dict[int, set[Column]] = {}
    for each in codes.values():
        for i, fact in each.columns.items():
            facts.setdefault(i, set()).add(fact)
    if not facts:
        return {}
    held: dict[Node, list[Place | None]] = {node: list(untouched(node)) for node in graph.inputs}
    shared: set[int] = set()
    """The columns that other estimators read."""
    looked = {origin[place] for node in notes.looking for place in untouched(node) if place and place in origin}
    stay = {i for i, column in enumerate(columns) if column.function_bits or (column.objects_stay and i not in looked)}
    unclear = set(returned) | stay
    """The columns of which the source may make something else in a frame with categories."""
    unclear |= {i for group in notes.frames.stacked for i in group}
    for node in graph.nodes:
        given = [held.get(source) or [None] * source.type.columns for source in node.inputs if len(source.type.shape) == 2]
        if isinstance(node.op, SelectColumns):
            held[node] = [given[0][i] for i in node.op.indices]
        elif isinstance(node.op, (Concat, Cast)) or node in notes.looking:
            held[node] = [place for places in given for place in places]
        else:
            own = codes[node].columns if node in codes else {}
            others = {origin[place] for places in given for place in places if place and place in origin} - set(own)
            shared |= others
            if not (type(node.op) is Check and node.op.owner.startswith("sklearn.")):
                unclear |= others
    given_back = (place for group in graph.outputs.values() for node in group for place in held.get(node, ()))
    unclear |= {origin[place] for place in given_back if place and place in origin}
    found = {i: _agreed(different) for i, different in facts.items()}
    found |= dict.fromkeys(unclear & facts.keys())
    wrong = {i for i in facts if (found[i] is None or i in shared) and not all(map(_own_places, facts[i]))}
    wrong |= {i for i in facts if found[i] is None and notes.frames.required}
    if refused := [each for each in codes.values() if not wrong.isdisjoint(each.columns)]:
        reason = (
            "it was fitted on categories of pandas in a column that another estimator reads as well. It computes with the places of the "
            "categories, and what the other one reads is not always the same number."
        )
        advice = "Give the other estimator a copy of the column, or fit this one on numbers without categories."
        culprits = dict.fromkeys(Culprit(each.owner, each.path, reason, advice) for each in refused)
        raise UnsupportedOperatorError(culprits=list(culprits))
    return {i: fact and replace(fact, category_as_object=i in shared) for i, fact in found.items()}


def _agreed(facts: set[Column]) -> Column | None:
    """What a frame must hold for all estimators that compute with the places of one column. None if it is not the same."""
    if len({(fact.category_values, *map(type, fact.category_values)) for fact in facts}) > 1:
        return None
    strict = {fact for fact in facts if fact.category_dtype}
    return next(iter(strict or facts)) if len(strict) < 2 and (strict or len(facts) == 1) else None


def _own_places(fact: Column) -> bool:
    return fact.category_values == tuple(range(len(fact.category_values)))


CATEGORICAL = (Categorize, CheckValues, MissingText, ImputeText, *PASSING)
"""Operators that ask of strings only which category they are."""


def _read_as_strings(graph: Graph, origin: Mapping[Place, int], among: tuple[type, ...] = ()) -> set[int]:
    """The columns of strings that operators of other classes than `among` read, or a method returns. By default these are HashText, which
    accepts digits as any other string, and what hands strings on."""
    readers = [(node.op, source) for node in graph.nodes for source in node.inputs if source.type.dtype == "str"]
    if among:
        others = [source for op, source in readers if not isinstance(op, among)]
    else:
        others = [source for op, source in readers if not isinstance(op, (HashText, *PASSING)) or isinstance(op, CheckValues)]
    others += [node for group in graph.outputs.values() for node in group if node.type.dtype == "str"]
    return {origin[place] for node in others for place in _strings_of(node) if place in origin}


def _strings_of(x: Node) -> set[Place]:
    """The columns of the model's input of which the strings x are made."""
    places = untouched(x)
    found = {place for place in places if place is not None}
    if None in places:
        found = found.union(*(_strings_of(source) for source in x.inputs if source.type.dtype == "str"))
    return found


def _given_dtype(y: Node, kept: Sequence[tuple[Node, Node]]) -> list[Node]:
    """The nodes whose dtype the source gives to y: those that y contains unchanged, or the one that a converter has named (`in_dtype_of`).
    Empty if y has a dtype of its own."""
    if y.type.dtype == "str":
        return []
    source = next((x for made, x in kept if made is y and x is not y), None)
    if source is not None:
        return _given_dtype(source, kept)
    if None not in untouched(y):
        return _read_with(y)
    parts = [_given_dtype(part, kept) for part in y.inputs] if isinstance(y.op, (Check, Concat, SelectColumns)) else []
    return [node for part in parts for node in part] if all(parts) else []


def _read_with(x: Node) -> list[Node]:
    """The nodes that the source has read together into one array: [x], or the checked nodes of which x is a selection of columns."""
    sources = x.inputs if isinstance(x.op, (Concat, SelectColumns)) else ()
    found = [node for source in sources for node in _read_with(source)]
    return found if any(isinstance(node.op, Check) for node in found) else [x]
