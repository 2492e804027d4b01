"""The error function, as scikit-learn's dependencies compute it, and the normal distribution.

Two approximations, since the sources have two: scipy.special.erf is exact to one ulp, and scipy.special.ndtr follows Cephes. All
tables hold the coefficients of a numerator and of a denominator, by falling power.
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from hbc.ir.graph import Node
from hbc.ops import tensor as t

# Rational approximations of erf and erfc on four intervals, exact to one ulp (FreeBSD's s_erf.c, Sun Microsystems 1993).
NEAR = (
    (-2.37630166566501626084e-05, -5.77027029648944159157e-03, -2.84817495755985104766e-02,
     -3.25042107247001499370e-01, 1.28379167095512558561e-01),
    (-3.96022827877536812320e-06, 1.32494738004321644526e-04, 5.08130628187576562776e-03, 6.50222499887672944485e-02,
     3.97917223959155352819e-01, 1.0),
)  # fmt: skip
ABOUT_ONE = (
    (-2.16637559486879084300e-03, 3.54783043256182359371e-02, -1.10894694282396677476e-01, 3.18346619901161753674e-01,
     -3.72207876035701323847e-01, 4.14856118683748331666e-01, -2.36211856075265944077e-03),
    (1.19844998467991074170e-02, 1.36370839120290507362e-02, 1.26171219808761642112e-01, 7.18286544141962662868e-02,
     5.40397917702171048937e-01, 1.06420880400844228286e-01, 1.0),
)  # fmt: skip
MIDDLE = (
    (-9.81432934416914548592e00, -8.12874355063065934246e01, -1.84605092906711035994e02, -1.62396669462573470355e02,
     -6.23753324503260060396e01, -1.05586262253232909814e01, -6.93858572707181764372e-01, -9.86494403484714822705e-03),
    (-6.04244152148580987438e-02, 6.57024977031928170135e00, 1.08635005541779435134e02, 4.29008140027567833386e02,
     6.45387271733267880336e02, 4.34565877475229228821e02, 1.37657754143519042600e02, 1.96512716674392571292e01, 1.0),
)  # fmt: skip
FAR = (
    (-4.83519191608651397019e02, -1.02509513161107724954e03, -6.37566443368389627722e02, -1.60636384855821916062e02,
     -1.77579549177547519889e01, -7.99283237680523006574e-01, -9.86494292470009928597e-03),
    (-2.24409524465858183362e01, 4.74528541206955367215e02, 2.55305040643316442583e03, 3.19985821950859553908e03,
     1.53672958608443695994e03, 3.25792512996573918826e02, 3.03380607434824582924e01, 1.0),
)  # fmt: skip
OF_ONE = 8.45062911510467529297e-01  # erf(1), rounded as the second interval needs it

# Cephes' erf for |x| < 1, and its erfc for 1 … 8, as in scipy.special.ndtr. Beyond 8, Φ is 0 or 1 to 1e-15.
CEPHES_ERF = (
    (9.60497373987051638749e0, 9.00260197203842689217e1, 2.23200534594684319226e3, 7.00332514112805075473e3,
     5.55923013010394962768e4),
    (1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3, 2.26290000613890934246e4,
     4.92673942608635921086e4),
)  # fmt: skip
CEPHES_ERFC = (
    (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687e0, 4.86371970985681366614e1,
     1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
     5.57535335369399327526e2),
    (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
     1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2),
)  # fmt: skip


def erf(x: Node) -> Node:
    """The error function 2/√π ∫₀ˣ e^(-s²) ds, f64; NaN for NaN (scipy.special.erf)."""
    size = t.absolute(x)
    square = t.mul(x, x)
    near = t.add(size, t.mul(size, _ratio(NEAR, t.minimum(square, 1.0))))
    about_one = t.add(_ratio(ABOUT_ONE, t.minimum(t.sub(size, 1.0), 1.0)), OF_ONE)
    inverse = t.div(1.0, t.maximum(square, 0.25))
    exponent = t.where(t.less(size, 1 / 0.35), _ratio(MIDDLE, inverse), _ratio(FAR, inverse))
    tail = t.sub(1.0, t.div(t.exp(t.add(t.sub(-0.5625, square), exponent)), t.maximum(size, 0.25)))
    positive = t.where(t.less(size, 0.84375), near, t.where(t.less(size, 1.25), about_one, tail))
    return t.where(t.less(x, 0.0), t.neg(positive), t.where(t.isnan(x), x, positive))


def normal_distribution(y: Node) -> Node:
    """Φ(y) = ½ + ½ erf(y/√2), computed by erfc for |y| ≥ √2 (scipy.stats.norm.cdf)."""
    x = t.mul(y, np.sqrt(0.5))
    square = t.mul(x, x)
    middle = t.add(t.mul(t.mul(x, _ratio(CEPHES_ERF, square)), 0.5), 0.5)
    z = t.minimum(t.absolute(x), 8.0)
    tail = t.mul(t.mul(t.exp(t.neg(t.mul(z, z))), _ratio(CEPHES_ERFC, z)), 0.5)
    return t.where(t.less(t.absolute(x), 1.0), middle, t.where(t.less(0.0, x), t.sub(1.0, tail), tail))


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], x: Node) -> Node:
    """The quotient of two polynomials in x, each by Horner's rule. Their coefficients are listed by falling power."""
    above, below = (reduce(lambda y, c: t.add(t.mul(y, x), c), p[2:], t.add(t.mul(x, p[0]), p[1])) for p in polynomials)
    return t.div(above, below)
