"""Numbers in arguments of the command line: of a type for argparse, refused in words."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def numbered(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a region, such as 0")
    return int(text)


def sized(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=N, such as batch=8")
    return name, positive(number)


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return number


def minutes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes, 0 or more")
    return number
