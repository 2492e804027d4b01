"""The linker: libraries of objects that cc and TVM have written, loaded by ctypes, tvm_ffi and programs; and what it refuses."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hbc.linker import elf
from hbc.linker.elf import LinkError, read_object
from hbc.linker.shared_library import shared_library

SOURCE = """
#include <stdlib.h>
#include <string.h>
static const double table[512] = {1.5, 2.5, 3.5};
static const char *const names[] = {"a", "bb", "ccc"};
static char zeros[5000];
int counter = 41;
void *hook;
double look(int i) { return table[i]; }
const char *name(int i) { return names[i]; }
int count(void) { return ++counter; }
int zero(int i, int now) { int before = zeros[i]; zeros[i] = now; return before; }
void *hooked(void) { return hook; }
void *(*allocator(void))(size_t) { return malloc; }
int ones(int n) {
  char *memory = malloc(n);
  int sum = 0;
  if (!memory) return -1;
  memset(memory, 1, n);
  for (int i = 0; i < n; i++) sum += memory[i];
  free(memory);
  return sum;
}
int choose(int k) {
  switch (k) {
    case 0: return 17;
    case 1: return count();
    case 2: return (int)look(1);
    case 3: return 99;
    case 4: return ones(3);
    case 5: return 12;
    default: return -1;
  }
}
"""
EXPORTS = ["look", "name", "count", "zero", "hooked", "allocator", "ones", "choose", "counter", "hook"]
PROGRAM = """
#include <stdio.h>
double look(int); const char *name(int); int ones(int), choose(int), count(void), zero(int, int);
int main(void) {
  printf("%g %s %d %d %d %d %d\\n", look(2), name(1), ones(77), choose(4), zero(4000, 1), choose(0), count());
  return 0;
}
"""
COMPILERS = {"x86-64": "gcc", "aarch64": "aarch64-linux-gnu-gcc"}
EMULATOR = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]


def compiled(folder: Path, source: str = SOURCE, compiler: str = "cc", options: tuple[str, ...] = ("-fPIC",)) -> bytes:
    """The object file that a C compiler makes. Skips the test where it is missing."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    Path(folder, "source.c").write_text(source)
    path = Path(folder, "source.o")
    subprocess.run([compiler, "-O2", *options, "-c", "source.c", "-o", str(path)], cwd=folder, check=True)
    return path.read_bytes()


def loaded(folder: Path, data: bytes) -> ctypes.CDLL:
    path = Path(folder, "library.so")
    path.write_bytes(data)
    return ctypes.CDLL(str(path))


def test_functions_and_variables(tmp_path: Path) -> None:
    """Constants, pointers to constants, variables, zeros, calls of functions of libc, and the address of one."""
    library = loaded(tmp_path, shared_library(compiled(tmp_path), EXPORTS))
    library.look.restype, library.name.restype, library.hooked.restype = ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p
    assert [library.look(i) for i in range(4)] == [1.5, 2.5, 3.5, 0]
    assert [library.name(i) for i in range(3)] == [b"a", b"bb", b"ccc"]
    assert [library.count(), library.count()] == [42, 43]
    assert ctypes.c_int.in_dll(library, "counter").value == 43
    assert [library.zero(4999, 7), library.zero(4999, 0), library.zero(0, 0)] == [0, 7, 0]
    assert library.hooked() is None
    ctypes.c_void_p.in_dll(library, "hook").value = 4096
    assert library.hooked() == 4096
    assert library.ones(1000) == 1000
    assert [library.choose(k) for k in range(7)] == [17, 44, 2, 99, 3, 12, -1]


def test_only_exports_are_found(tmp_path: Path) -> None:
    library = loaded(tmp_path, shared_library(compiled(tmp_path), ["look"]))
    assert library.look
    with pytest.raises(AttributeError):
        assert library.count


def test_many_exports(tmp_path: Path) -> None:
    """The hash table leads to each of 300 symbols, and to none that is not there."""
    source = "\n".join(f"int function_{i}(void) {{ return {i}; }}" for i in range(300))
    library = loaded(tmp_path, shared_library(compiled(tmp_path, source), [f"function_{i}" for i in range(300)]))
    assert [library[f"function_{i}"]() for i in range(300)] == list(range(300))
    with pytest.raises(AttributeError):
        assert library.function_300


def test_no_memory_is_both_written_and_executed(tmp_path: Path) -> None:
    """Constants that hold addresses are read-only once the library is loaded."""
    data = shared_library(compiled(tmp_path, SOURCE + "const void *pointers(void) { return names; }"), [*EXPORTS, "pointers"])
    library = loaded(tmp_path, data)
    library.pointers.restype = ctypes.c_void_p
    rights = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line)
        assert found is not None
        start, end = int(found[1], 16), int(found[2], 16)
        for name, address in {
            "constant": library.pointers(),
            "variable": ctypes.addressof(ctypes.c_int.in_dll(library, "counter")),
            "code": ctypes.cast(library.count, ctypes.c_void_p).value,
        }.items():
            assert address is not None
            if start <= address < end:
                rights[name] = found[3]
    assert rights == {"constant": "r--p", "variable": "rw-p", "code": "r-xp"}


@pytest.mark.parametrize("machine", COMPILERS)
def test_programs_link_against_the_library(machine: str, tmp_path: Path) -> None:
    """`cc main.c library.so` reads the section headers, and the program's loader finds the library by its name."""
    compiler = COMPILERS[machine]
    Path(tmp_path, "libmodel.so").write_bytes(shared_library(compiled(tmp_path, compiler=compiler), EXPORTS, "libmodel.so"))
    Path(tmp_path, "main.c").write_text(PROGRAM)
    command = [compiler, "main.c", "-o", "main", "-L.", "-lmodel", f"-Wl,-rpath,{tmp_path}"]
    subprocess.run(command, cwd=tmp_path, check=True)
    emulated = machine == "aarch64"
    if emulated and shutil.which(EMULATOR[0]) is None:
        pytest.skip("no emulator")
    run = subprocess.run([*(EMULATOR if emulated else []), "./main"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert run.stdout == "3.5 bb 77 3 0 17 42\n"


@pytest.mark.parametrize("machine", COMPILERS)
def test_what_readelf_sees(machine: str, tmp_path: Path) -> None:
    if shutil.which("readelf") is None:
        pytest.skip("no readelf")
    path = Path(tmp_path, "library.so")
    path.write_bytes(shared_library(compiled(tmp_path, compiler=COMPILERS[machine]), EXPORTS, "model.so", ["libc.so.6"]))
    done = subprocess.run(["readelf", "-W", "-a", str(path)], check=True, capture_output=True, text=True)
    assert not done.stderr
    assert "soname: [model.so]" in done.stdout
    assert "Shared library: [libc.so.6]" in done.stdout
    assert all(re.search(rf"(FUNC|OBJECT) +GLOBAL +DEFAULT +\d+ {name}\n", done.stdout) for name in EXPORTS)
    assert ".eh_frame" not in done.stdout
    assert "TEXTREL" not in done.stdout


def test_what_it_refuses(tmp_path: Path) -> None:
    data = compiled(tmp_path)
    with pytest.raises(LinkError, match="has no absent, other"):
        shared_library(data, ["look", "absent", "other"])
    with pytest.raises(LinkError, match="has no malloc"):
        shared_library(data, ["malloc"])
    with pytest.raises(LinkError, match="expected an object file in the format ELF"):
        shared_library(b"!<arch>\n", [])
    with pytest.raises(LinkError, match="of type 3"):
        shared_library(shared_library(data, []), [])
    with pytest.raises(LinkError, match="machine 243"):
        shared_library(data[:18] + b"\xf3\0" + data[20:], [])
    with pytest.raises(LinkError, match=r"section \.tbss .* flags 1027"):
        shared_library(compiled(tmp_path, "_Thread_local int mine; int *get(void) { return &mine; }"), ["get"])
    with pytest.raises(LinkError, match=r"section \.init_array\S* is of kind 14"):
        shared_library(compiled(tmp_path, "__attribute__((constructor)) void start(void) {}"), ["start"])


@pytest.mark.parametrize("machine", COMPILERS)
def test_unknown_relocations(machine: str, tmp_path: Path) -> None:
    """They are named with their place, never left out: the code would compute with whatever stands there."""
    data = bytearray(compiled(tmp_path, compiler=COMPILERS[machine]))
    header = elf.FILE_HEADER.unpack_from(data)
    sections = [elf.SECTION_HEADER.unpack_from(data, header[6] + 64 * i) for i in range(header[12])]
    made = read_object(bytes(data))
    place = next(s[4] for s in sections if s[1] == elf.RELA and made.sections[s[7]].name.startswith(".text"))
    offset, what, addend = elf.RELOCATION.unpack_from(data, place)
    elf.RELOCATION.pack_into(data, place, offset, what >> 32 << 32 | 77, addend)
    with pytest.raises(LinkError, match=rf"\.text\S* \+ \d+: .*relocation 77 of {machine}"):
        shared_library(bytes(data), [])


def test_code_that_is_not_position_independent(tmp_path: Path) -> None:
    if read_object(compiled(tmp_path)).machine != 62:
        pytest.skip("written for x86-64")
    data = compiled(tmp_path, "extern int other; int get(void) { return other; }", options=("-fno-pic", "-mcmodel=small"))
    with pytest.raises(LinkError, match="other is outside, and relocation 2 of x86-64 can't reach it"):
        shared_library(data, ["get"])
    data = compiled(tmp_path, "static int f(void) { return 1; } int (*get(void))(void) { return f; }", options=("-fno-pic",))
    with pytest.raises(LinkError, match="relocation 10 of x86-64 is not known here"):
        shared_library(data, ["get"])


def test_code_of_tvm(tmp_path: Path) -> None:
    """A packed function, whose weak variables the loader fills in with functions of TVM's runtime."""
    pytest.importorskip("tvm")
    import numpy as np
    import tvm_ffi
    from tvm import te, tirx

    n = tirx.Var("n", "int64")
    a = te.placeholder((n,), "float32", name="a")
    b = te.compute((n,), lambda i: a[i] * 2 + 1, name="b")
    made = tirx.build(te.create_prim_func([a, b]).with_attr("global_symbol", "twice"), target="llvm")
    path = Path(tmp_path, "twice.o")
    made.write_to_file(str(path), "o")
    exports = [
        s.name for s in read_object(path.read_bytes()).symbols if s.name.startswith("__") and s.binding and not s.outside
    ]
    assert "__tvm_ffi_twice" in exports
    library = Path(tmp_path, "twice.so")
    library.write_bytes(shared_library(path.read_bytes(), exports))
    x, y = np.arange(5, dtype=np.float32), np.empty(5, np.float32)
    tvm_ffi.load_module(str(library))["twice"](x, y)
    assert (y == x * 2 + 1).all()


def test_code_of_tvm_for_aarch64(tmp_path: Path) -> None:
    """TVM's LLVM writes it on any computer."""
    pytest.importorskip("tvm")
    from tvm import te, tirx

    a = te.placeholder((64,), "float32", name="a")
    b = te.compute((64,), lambda i: te.exp(a[i]), name="b")
    target = {"kind": "llvm", "mtriple": "aarch64-linux-gnu"}
    made = tirx.build(te.create_prim_func([a, b]).with_attr("global_symbol", "exponentials"), target=target)
    path = Path(tmp_path, "code.o")
    made.write_to_file(str(path), "o")
    data = shared_library(path.read_bytes(), ["__tvm_ffi_exponentials"])
    assert data[18] == 183
    assert b"expf\0" in data
