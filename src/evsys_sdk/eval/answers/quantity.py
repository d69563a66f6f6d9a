r"""Exact numbers from text, in the notations that people and models use.

    1,234.5   1.234,5 (decimal comma)   ½   2 1/2   3/4   \frac{3}{4}   1.5e-3   1.5 * 10³   10^{6}   50%   $7   5 km

Values are decimals: floats equate 10000000000000001 and 10000000000000000, and an integer would expand 1e999999999.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, DecimalException
from functools import cache
from typing import Literal

type DecimalMark = Literal["point", "comma"]

EXACT = Context(prec=60, Emax=10**9, Emin=-(10**9))
"""More digits than any answer has, and a limited exponent, which bounds the time."""

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺"
_LOWERED = str.maketrans(_SUPERSCRIPTS, "0123456789-+")
_SUPERSCRIPT_RUN = re.compile(f"[{_SUPERSCRIPTS}]+")
_PLAIN_LETTERS = str.maketrans(
    {
        "\N{MINUS SIGN}": "-",
        "\N{EN DASH}": "-",
        "\N{NON-BREAKING HYPHEN}": "-",
        "\N{FRACTION SLASH}": "/",
        "\N{MULTIPLICATION SIGN}": "*",
        "\N{MIDDLE DOT}": "*",
        "\N{DOT OPERATOR}": "*",
        "\N{ARABIC DECIMAL SEPARATOR}": ".",
        "\N{ARABIC THOUSANDS SEPARATOR}": "\N{NO-BREAK SPACE}",
        "\N{NARROW NO-BREAK SPACE}": "\N{NO-BREAK SPACE}",
        "\N{THIN SPACE}": "\N{NO-BREAK SPACE}",
        "\N{FIGURE SPACE}": "\N{NO-BREAK SPACE}",
    }
)
_LATEX = [
    (re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]{0,100})\}"), r" \1 "),
    (re.compile(r"(?<=\d)\s*(?=\\[dtc]?frac)"), " "),  # 2\frac{1}{2} is two and a half, not 21/2
    (re.compile(r"\\[dtc]?frac\s*\{\s*(-?[\d.,]{1,400})\s*\}\s*\{\s*(-?[\d.,]{1,400})\s*\}"), r"\1/\2"),
    (re.compile(r"\\[dtc]?frac\s*(\d)\s*(\d)"), r"\1/\2"),
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\[,;:! ]|\{,\}"), "\N{NO-BREAK SPACE}"),
    (re.compile(r"\\(?=[%$])"), ""),
]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with its percent sign or unit."""

    value: Decimal
    percent: bool = False
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Notation:
    """How a text writes numbers."""

    decimal_mark: DecimalMark = "point"
    group_by_spaces: bool = False
    units: tuple[str, ...] = ()

    def find(self, text: str) -> Iterator[re.Match[str]]:
        """Every number in a text normalised by `plain`; `read` gives its value."""
        return _pattern(self.decimal_mark, self.group_by_spaces, self.units).finditer(text)

    def read(self, match: re.Match[str]) -> Quantity | None:
        """The value of a matched number; None if undefined, such as 1/0 or an excessive exponent."""
        try:
            value = self._value(match)
        except (DecimalException, ValueError):
            return None
        if not value.is_finite():
            return None
        return Quantity(value, percent=match["percent"] is not None, unit=match["unit"])

    def _value(self, match: re.Match[str]) -> Decimal:
        value = self._decimal(match["number"])
        if match["divisor"]:
            value = EXACT.divide(value, self._decimal(match["divisor"]))
        if match["whole"]:
            value = EXACT.add(self._decimal(match["whole"]), value)
        if match["power"]:
            value = EXACT.power(value, EXACT.create_decimal(match["power"]))
        if exponent := match["e"] or match["ten_to"]:
            value = EXACT.multiply(value, EXACT.create_decimal(f"1e{int(exponent)}"))
        # Apply the sign last: -2^2 is -4, and -1 1/2 is less than -1.
        return EXACT.minus(value) if match["sign"] == "-" else value

    def _decimal(self, digits: str) -> Decimal:
        groups = "[ ,'_\xa0]" if self.decimal_mark == "point" else "[ .'_\xa0]"
        return EXACT.create_decimal(re.sub(groups, "", digits).replace(",", "."))


def close(actual: Decimal, expected: Decimal, *, relative: float, absolute: float) -> bool:
    """Whether two numbers differ by at most a share of `expected` or an absolute amount."""
    share = EXACT.multiply(Decimal(repr(relative)), EXACT.abs(expected))
    return EXACT.abs(EXACT.subtract(actual, expected)) <= max(share, Decimal(repr(absolute)))


def plain(text: str) -> str:
    """The text with normalised signs, spaces, superscripts, fractions and LaTeX numbers."""
    # ASCII text needs no letter-wise pass, which is slow.
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda run: f"^{run[0].translate(_LOWERED)}", text)
        text = "".join(_plain_letters(text)).translate(_PLAIN_LETTERS)
    for pattern, replacement in _LATEX if "\\" in text or "{" in text else ():
        text = pattern.sub(replacement, text)
    return text


def _plain_letters(text: str) -> Iterator[str]:
    """Digits of every script as 0 to 9, full-width letters as ASCII, and `2½` as `2 1/2`."""
    last = ""
    for letter in text:
        if not letter.isascii():
            if "<fraction>" in unicodedata.decomposition(letter):
                letter = (" " if last.isdigit() else "") + unicodedata.normalize("NFKC", letter)
            elif "\N{FULLWIDTH EXCLAMATION MARK}" <= letter <= "\N{FULLWIDTH TILDE}":
                letter = unicodedata.normalize("NFKC", letter)
            else:
                letter = str(unicodedata.decimal(letter, letter))
        yield letter
        last = letter[-1]


@cache
def _pattern(decimal_mark: DecimalMark, group_by_spaces: bool, units: tuple[str, ...]) -> re.Pattern[str]:
    """The regular expression of a number; it repeats only single characters and fixed groups, so it stays linear."""
    point, comma = (r"\.", ",") if decimal_mark == "point" else (",", r"\.")
    space = r"\ " if group_by_spaces else ""
    grouped = rf"\d{{1,3}}(?:[{comma}'_\xa0{space}]\d{{3}})+(?!\d)(?:{point}\d+)?"
    digits = rf"(?:{grouped}|\d+(?:{point}\d*)?|{point}\d+)"
    raised = r"\ ?(?:\^|\*\*)\ ?[{{(]?(?P<{name}>[+-]?\d+)[)}}]?"
    # Longest first, or `km/h` would match as `km`. Without units, `(?!)` never matches; an empty choice always would.
    unit = "|".join(re.escape(name) for name in sorted(units, key=len, reverse=True)) or "(?!)"
    return re.compile(
        rf"""(?<![\w.^{point}])[$€£¥]?(?P<sign>[+-])?[$€£¥]?
        (?:(?P<whole>\d+)\ {{1,3}}(?=\d+/\d))?
        (?P<number>{digits})
        (?:/(?P<divisor>{digits})(?![\d/]))?
        (?:
            [eE](?P<e>[+-]?\d+)
          | \ ?[*x]\ ?10{raised.format(name="ten_to")}
          | {raised.format(name="power")}
        )?
        (?:\s?(?P<percent>%))?
        (?:\s{{0,2}}(?P<unit>{unit})(?![\w^]))?""",
        re.VERBOSE,
    )
