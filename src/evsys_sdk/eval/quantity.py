r"""Numbers in text, in the notations people and models use, read exactly.

    1,234.5   1.234,5 (decimal comma)   1 234 (no-break spaces)   −3   ½   2 1/2   3/4   \frac{3}{4}   1.5e-3
    1.5 × 10^3   1.5 \times 10^{3}   10²   50%   $7   5 km (with units)

Values are decimals, because a float would call 10000000000000001 and 10000000000000000 equal, and because the exponent
of 1e999999999 must not become a number with a billion digits.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Clamped, Context, Decimal, DecimalException, Inexact, Rounded, Subnormal
from functools import cache
from typing import Literal

type DecimalMark = Literal["point", "comma"]

EXACT = Context(prec=60, Emax=10**9, Emin=-(10**9))
"""More digits than any answer, and no exponent that could take for ever."""
for _harmless in (Inexact, Rounded, Subnormal, Clamped):
    EXACT.traps[_harmless] = False

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUPERSCRIPT_RUN = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺]+")
_PLAIN = {
    ord("\N{MINUS SIGN}"): "-",
    ord("\N{FRACTION SLASH}"): "/",
    ord("\N{MULTIPLICATION SIGN}"): "*",
    ord("\N{MIDDLE DOT}"): "*",
    ord("\N{DOT OPERATOR}"): "*",
    **{ord(space): "\N{NO-BREAK SPACE}" for space in "\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}\N{FIGURE SPACE}"},
}
_LATEX = [
    (re.compile(r"\\(?:[dtc]?frac)\s*\{\s*(-?[\d.,]{1,400})\s*\}\s*\{\s*(-?[\d.,]{1,400})\s*\}"), r"\1/\2"),
    (re.compile(r"\\(?:times|cdot)\b"), "*"),
    (re.compile(r"\\[,;:! ]|\{,\}"), ","),
    (re.compile(r"\\(?=[%$])"), ""),
]


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number as it was written, with what was written behind it."""

    value: Decimal
    percent: bool = False
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class Notation:
    """How numbers are written in some text."""

    decimal_mark: DecimalMark = "point"
    units: tuple[str, ...] = ()

    def find(self, text: str) -> Iterator[re.Match[str]]:
        """Every number in a text that went through `plain`."""
        return _pattern(self.decimal_mark, self.units).finditer(text)

    def read(self, match: re.Match[str]) -> Quantity | None:
        """The value of a number that was found; None where it has none, as 1/0 or an exponent beyond reason."""
        try:
            value = self._value(match)
        except (DecimalException, ValueError):
            return None
        return Quantity(value, percent=match["percent"] is not None, unit=match["unit"]) if value.is_finite() else None

    def _value(self, match: re.Match[str]) -> Decimal:
        value = self._decimal(match["number"] or "1")
        if match["whole"]:
            value = EXACT.add(self._decimal(match["whole"]), value)
        if match["divisor"]:
            part = EXACT.divide(self._decimal(match["number"]), self._decimal(match["divisor"]))
            value = EXACT.add(self._decimal(match["whole"] or "0"), part)
        power = match["power"] or match["bare_power"]
        if power:
            value = EXACT.multiply(value, EXACT.create_decimal(f"1e{int(power)}"))
        return EXACT.minus(value) if match["sign"] == "-" else value

    def _decimal(self, digits: str) -> Decimal:
        kept = re.sub(r"[ ,'_\xa0]" if self.decimal_mark == "point" else r"[ .'_\xa0]", "", digits)
        return EXACT.create_decimal(kept.replace(",", "."))


def plain(text: str) -> str:
    """The text with one way of writing signs, spaces, superscripts, fractions and the LaTeX of numbers."""
    if not text.isascii():
        text = _SUPERSCRIPT_RUN.sub(lambda run: f"^{run[0].translate(_SUPERSCRIPTS)}", text)
        text = "".join(_spelled_fraction(letter) for letter in text).translate(_PLAIN)
        text = "".join(str(unicodedata.decimal(letter, letter)) for letter in text)
    for pattern, replacement in _LATEX if "\\" in text or "{" in text else ():
        text = pattern.sub(replacement, text)
    return text


def _spelled_fraction(letter: str) -> str:
    """`½` as ` 1/2`, so that `2½` is two and a half."""
    return f" {unicodedata.normalize('NFKC', letter)}" if "<fraction>" in unicodedata.decomposition(letter) else letter


@cache
def _pattern(decimal_mark: DecimalMark, units: tuple[str, ...]) -> re.Pattern[str]:
    """One pattern for a number; every repetition in it is over single characters or fixed groups, so it is linear."""
    point, comma = (r"\.", ",") if decimal_mark == "point" else (",", r"\.")
    grouped = rf"\d{{1,3}}(?:[{comma}'_\xa0]\d{{3}})+(?!\d)(?:{point}\d+)?"
    digits = rf"(?:{grouped}|\d+(?:{point}\d*)?|{point}\d+)"
    exponent = r"\{?\(?(?P<{}>[+-]?\d{{1,9}})\)?\}?"
    unit = "|".join(re.escape(name) for name in sorted(units, key=len, reverse=True))
    return re.compile(
        rf"""(?<![\w.^{point}])(?P<sign>[+-])?\s?[$€£¥]?
        (?:
            10\ ?(?:\^|\*\*)\ ?{exponent.format("bare_power")}
          | (?:(?P<whole>\d{{1,18}})\ +(?=\d+/\d))?
            (?P<number>{digits})
            (?:/(?P<divisor>{digits})(?!/\d))?
            (?:[eE](?P<e_power>[+-]?\d{{1,9}})(?!\w) | \ ?[*x]\ ?10\ ?(?:\^|\*\*)\ ?{exponent.format("power")})?
        )
        (?:\s?(?P<percent>%))?(?:\s?(?P<unit>{unit or "(?!)"})(?!\w))?""",
        re.VERBOSE,
    )
