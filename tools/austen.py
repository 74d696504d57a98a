"""Reads the books out of an unpacked r-cran-janeaustenr, without R, and checks them.

usage: austen.py write PACKAGE_FOLDER OUT    one UTF-8 .txt a book, checked
       austen.py check OUT                   exit 0 when OUT holds all six, whole

R keeps the data sets of a package in Rdata.rdb, one record after the other: a length (4 bytes, big-endian), then that many
bytes of zlib (4 bytes of inflated length less). Inflated, a record is one object in R's binary serialisation ("X\\n", version 2
or 3). Each book is a character vector, one string a line, and that is all that is read here.
"""
import io
import pathlib
import struct
import sys
import zlib

BOOKS = {  # file name: (first line, smallest believable size in bytes)
    "emma": ("EMMA", 850_000),
    "mansfield_park": ("MANSFIELD PARK", 850_000),
    "northanger_abbey": ("NORTHANGER ABBEY", 400_000),
    "persuasion": ("Persuasion", 430_000),
    "pride_and_prejudice": ("PRIDE AND PREJUDICE", 650_000),
    "sense_and_sensibility": ("SENSE AND SENSIBILITY", 640_000),
}
CHARACTER_VECTOR, STRING = 16, 9  # R's type numbers STRSXP and CHARSXP, the low byte of an item's flags
MISSING = -1


class NotABook(ValueError):
    """The bytes are not an R character vector."""


class Reader:
    """Big-endian fields from bytes; running out of them is NotABook."""

    def __init__(self, data):
        self.stream = io.BytesIO(data)

    def take(self, count):
        found = self.stream.read(count) if count >= 0 else b""
        if len(found) != count:
            raise NotABook(f"expected {count} more bytes, found {len(found)}")
        return found

    def integer(self):
        return struct.unpack(">i", self.take(4))[0]

    def expect(self, what, wanted, found):
        if found != wanted:
            raise NotABook(f"expected {what} {wanted}, found {found}")


def records(data):
    """The inflated records of an .rdb file, in order."""
    at = 0
    while at < len(data):
        if at + 4 > len(data):
            raise NotABook("the last record is cut short")
        inflate = zlib.decompressobj()
        yield inflate.decompress(data[at + 4 :])
        if not inflate.eof:
            raise NotABook("a compressed record is cut short")
        at = len(data) - len(inflate.unused_data)


def lines_of(record):
    """The strings of one serialised character vector."""
    reader = Reader(record)
    reader.expect("format", b"X\n", reader.take(2))
    version = reader.integer()
    reader.take(8)  # the version of R that wrote it, the oldest that can read it
    if version == 3:
        reader.take(reader.integer())  # the encoding's name
    reader.expect("type", CHARACTER_VECTOR, reader.integer() & 0xFF)
    lines = []
    for _ in range(reader.integer()):
        reader.expect("type", STRING, reader.integer() & 0xFF)
        length = reader.integer()
        lines.append("" if length == MISSING else reader.take(length).decode("utf-8"))
    return lines


def write(package, out):
    sources = sorted(pathlib.Path(package).rglob("data/Rdata.rdb"))
    if not sources:
        raise NotABook(f"{package} holds no data/Rdata.rdb")
    names = {title: name for name, (title, _) in BOOKS.items()}
    out.mkdir(parents=True)
    for record in records(sources[0].read_bytes()):
        lines = lines_of(record)
        name = names.get(lines[0].strip() if lines else "")
        if name:
            (out / f"{name}.txt").write_text("\n".join(lines).strip("\n") + "\n", encoding="utf-8", newline="\n")
    check(out)


def check(out):
    for name, (title, size) in BOOKS.items():
        path = out / f"{name}.txt"
        if not path.is_file() or path.stat().st_size < size:
            raise NotABook(f"{path} is not there or is shorter than {size} bytes")
        with path.open(encoding="utf-8") as book:
            if book.readline().strip() != title:
                raise NotABook(f"{path} does not begin with {title}")


def main(arguments):
    try:
        if len(arguments) == 3 and arguments[0] == "write":
            write(pathlib.Path(arguments[1]), pathlib.Path(arguments[2]))
        elif len(arguments) == 2 and arguments[0] == "check":
            check(pathlib.Path(arguments[1]))
        else:
            print(__doc__, file=sys.stderr)
            return 2
    except (NotABook, OSError, UnicodeDecodeError, zlib.error) as error:
        print(f"austen.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
