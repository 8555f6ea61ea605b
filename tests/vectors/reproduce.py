"""Recomputes every vector in this folder from README.md alone, with nothing but Python's standard library.

Run it without arguments. It prints what differs and exits with 1, or prints how many vectors agree.
"""

import base64
import hashlib
import json
import pathlib
import re
import sys
from urllib.parse import quote


class ByBytes(Exception):
    """The body is not cleanly of its kind."""


class Missing(Exception):
    """A derived key lacks a part."""


class KeyRefused(Exception):
    """The key header is not exactly one key."""


def sha256(data):
    return hashlib.sha256(data).digest()


def u64(number):
    return number.to_bytes(8, "big")


def framed(data):
    return u64(len(data)) + data


def octets(value):
    """A text of the vectors as bytes: a string is UTF-8, {"hex": ...} is any bytes."""
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()


def text(data):
    """The other way round."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def lines_of(given, name):
    return [octets(value) for header, value in given.get("headers", []) if header.lower() == name]


# --- the client's own key


def client_key(given):
    name = given.get("header", "idempotency-key")
    for header, _ in given["headers"]:
        if header.lower() != name and header.lower().replace("_", "-") == name.replace("_", "-"):
            raise KeyRefused("twin")
    lines = lines_of(given, name)
    if not lines:
        return None
    if len(lines) > 1:
        raise KeyRefused("several-lines")
    key = quoted_key(lines[0][1:]) if lines[0][:1] == b'"' else bare_key(lines[0])
    if not key:
        raise KeyRefused("empty")
    if len(key) > 255:
        raise KeyRefused("too-long")
    return key.decode()


def bare_key(line):
    for byte in line:
        refuse_if(byte == ord(","), "list")
        refuse_if(byte == ord(";"), "parameters")
        refuse_if(not 0x21 <= byte <= 0x7E, "not-visible")
    return line


def quoted_key(line):
    key, at = bytearray(), 0
    while at < len(line):
        byte, after = line[at : at + 1], line[at + 1 : at + 2]
        if byte == b'"':
            refuse_if(after == b",", "list")
            refuse_if(after == b";", "parameters")
            refuse_if(after != b"", "quoting")
            return bytes(key)
        if byte == b"\\":
            refuse_if(after not in (b'"', b"\\"), "quoting")
            byte, at = after, at + 1
        else:
            refuse_if(not 0x21 <= byte[0] <= 0x7E, "not-visible")
        key += byte
        at += 1
    raise KeyRefused("quoting")


def refuse_if(condition, kind):
    if condition:
        raise KeyRefused(kind)


# --- payloads


class Number(str):
    """A JSON number as it was written."""


def read_json(body):
    try:
        value = json.loads(
            body.decode("utf-8"),
            parse_int=Number,
            parse_float=Number,
            parse_constant=not_json,
            object_pairs_hook=unique,
        )
    except (ValueError, RecursionError) as problem:
        raise ByBytes from problem
    check_depth(value)
    write_json(value)
    return value


def not_json(_):
    raise ByBytes


def unique(pairs):
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ByBytes
    return members


def check_depth(value, depth=0):
    if isinstance(value, (dict, list)):
        if depth == 128:
            raise ByBytes
        for item in value.values() if isinstance(value, dict) else value:
            check_depth(item, depth + 1)


def write_json(value, ignored=()):
    """The canonical text. `ignored` is a list of pointers, each a list of tokens."""
    if isinstance(value, Number):
        return write_number(value)
    if isinstance(value, str):
        return write_string(value)
    if isinstance(value, dict):
        members = sorted(value.items())
        kept = [(name, item, step_down(ignored, name)) for name, item in members]
        return "{" + ",".join(write_string(n) + ":" + write_json(i, b) for n, i, b in kept if [] not in b) + "}"
    if isinstance(value, list):
        kept = [(item, step_down(ignored, str(place))) for place, item in enumerate(value)]
        return "[" + ",".join(write_json(i, b) for i, b in kept if [] not in b) + "]"
    return {None: "null", True: "true", False: "false"}[value]


def step_down(ignored, token):
    return [tokens[1:] for tokens in ignored if tokens and tokens[0] == token]


def write_string(value):
    try:
        value.encode()
    except UnicodeEncodeError as lone_surrogate:
        raise ByBytes from lone_surrogate
    return json.dumps(value, ensure_ascii=False)


def write_number(written):
    sign, whole, fraction, exponent = re.fullmatch(
        r"(-?)(\d+)(?:\.(\d+))?(?:[eE]([-+]?\d+))?", written, re.ASCII
    ).groups(default="")
    if len(exponent.lstrip("+-").lstrip("0")) > 18:
        raise ByBytes
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or "0") - len(fraction) + len(digits) - len(digits.rstrip("0"))
    return f"{sign}{digits.rstrip('0')}e{power}" if digits else "0e0"


def pointer(written):
    return [token.replace("~1", "/").replace("~0", "~") for token in written.split("/")[1:]]


def read_form(body):
    if re.search(rb"%(?![0-9A-Fa-f]{2})", body):
        raise ByBytes
    fields = [piece.partition(b"=")[::2] for piece in body.split(b"&") if piece]
    return [(unescape(name), unescape(value)) for name, value in fields]


def unescape(data):
    return re.sub(rb"%(..)", lambda found: bytes.fromhex(found[1].decode()), data.replace(b"+", b" "), flags=re.DOTALL)


def write_form(fields, ignored):
    kept = [field for field in fields if field[0] not in ignored]
    kept.sort(key=lambda field: re.match(rb".*?\[\]|.*", field[0], re.DOTALL)[0])
    return "&".join(f"{quote(name, safe='')}={quote(value, safe='')}" for name, value in kept).encode()


def parameter(value, wanted):
    """A parameter of a header value; None where it is absent, given twice or malformed."""
    found, at = [], value.find(b";")
    item = re.compile(rb';\s*([^=]*)=(?:"((?:\\.|[^"\\])*)"|([^;"\s]+))\s*', re.DOTALL)
    while 0 <= at < len(value):
        match = item.match(value, at)
        if not match:
            return None
        name, quoted, token = match.groups()
        if name.lower() == wanted:
            found.append(token if quoted is None else re.sub(rb"\\(.)", rb"\1", quoted, flags=re.DOTALL))
        at = match.end()
    return found[0] if len(found) == 1 else None


def read_multipart(boundary, body):
    if boundary is None or not 1 <= len(boundary) <= 70:
        raise ByBytes
    first, *parts = (b"\r\n" + body).split(b"\r\n--" + boundary)
    if first or not parts or parts.pop() not in (b"--", b"--\r\n"):
        raise ByBytes
    return [read_part(part) for part in parts]


def read_part(part):
    if not part.startswith(b"\r\n") or b"\r\n\r\n" not in part:
        raise ByBytes
    head, body = part.split(b"\r\n\r\n", 1)
    headers = []
    for line in head.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not re.fullmatch(rb"[!-~]+", name) or re.search(rb"[\r\n]", value):
            raise ByBytes
        headers.append((name.lower(), value.strip(b" \t\f")))
    return sorted(headers, key=lambda header: header[0]), body


def write_multipart(parts, ignored):
    out = b""
    for headers, body in parts:
        dispositions = [value for name, value in headers if name == b"content-disposition"]
        if len(dispositions) == 1 and parameter(dispositions[0], b"name") in ignored:
            continue
        out += framed(b"".join(name + b":" + value + b"\n" for name, value in headers)) + framed(body)
    return out


def essence(content_type):
    return content_type.split(b";")[0].strip().lower()


def payload(given):
    """(kind, canonical form) of the body."""
    body = octets(given.get("body", ""))
    ignored = given.get("ignore", [])
    pointers = [pointer(one) for one in ignored if one.startswith("/")]
    fields = [one.encode() for one in ignored if not one.startswith("/")]
    kind = chosen(given)
    try:
        if kind == "json":
            return kind, write_json(read_json(body), pointers).encode()
        if kind == "form":
            return kind, write_form(read_form(body), fields)
        if kind == "multipart":
            types = lines_of(given, "content-type")
            boundary = parameter(types[0], b"boundary") if len(types) == 1 else None
            return kind, write_multipart(read_multipart(boundary, body), fields)
    except ByBytes:
        pass
    return "bytes", body


def chosen(given):
    if any(line.lower() != b"identity" for line in lines_of(given, "content-encoding")):
        return "bytes"
    if given.get("compare", "auto") != "auto":
        return given["compare"]
    types = [essence(line) for line in lines_of(given, "content-type")]
    if len(types) != 1:
        return "bytes"
    by_type = {
        b"application/json": "json",
        b"application/x-www-form-urlencoded": "form",
        b"multipart/form-data": "multipart",
    }
    return by_type.get(types[0], "json" if types[0].endswith(b"+json") else "bytes")


def payload_digest(given):
    kind, canonical = payload(given)
    return sha256(b"oncegate-payload-1\n" + kind.encode() + b"\n" + canonical)


# --- keys that the gateway makes


def derived(given):
    """The canonical array of a derived key."""
    names = given["from"]
    if not names:
        raise Missing("ingredient")
    session, step = given.get("session"), given.get("step")
    if "session" in names and session is None:
        raise Missing("ingredient")
    if "step" in names and step is None:
        raise Missing("step-of-session" if "session" in names else "ingredient")
    by_fingerprint = given.get("payload_in") == "fingerprint" and {"session", "step"} <= set(names)
    array = [
        "oncegate-1",
        given.get("caller", ""),
        given["route"],
        session if "session" in names else None,
        step if "step" in names else None,
        given["method"],
        given["target"],
        payload_digest(given).hex() if "payload" in names and not by_fingerprint else None,
    ]
    array += [[name, ingredient(given, name)] for name in map(spelled, names) if ":" in name]
    return write_json(array)


def spelled(name):
    return name.lower() if name.startswith("header:") else name


def ingredient(given, name):
    kind, _, wanted = name.partition(":")
    if kind == "header":
        values = [line.decode("latin-1") for line in lines_of(given, wanted)]
    elif kind == "json":
        return json_ingredient(given, wanted)
    else:
        source = octets(given.get("body", "")) if kind == "form" else given["target"].partition("?")[2].encode()
        try:
            values = [quote(value, safe="") for field, value in read_form(source) if field == wanted.encode()]
        except ByBytes:
            values = []
    if not any(values):
        raise Missing("ingredient")
    return values


def json_ingredient(given, wanted):
    try:
        value = read_json(octets(given.get("body", "")))
        for token in pointer(wanted):
            value = value[token] if isinstance(value, dict) else value[array_index(token, value)]
    except (ByBytes, LookupError, TypeError) as absent:
        raise Missing("ingredient") from absent
    if value in (None, "") and not isinstance(value, bool):
        raise Missing("ingredient")
    return value


def array_index(token, value):
    if not isinstance(value, list) or not re.fullmatch(r"0|[1-9][0-9]*", token):
        raise LookupError
    return int(token)


def spellings(key):
    short = bytearray(key[:16])
    short[6] = short[6] & 0x0F | 0x80
    short[8] = short[8] & 0x3F | 0x80
    digits = short.hex()
    return {
        "hex": key.hex(),
        "base64url": base64.urlsafe_b64encode(key).decode().rstrip("="),
        "uuid": "-".join([digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]]),
    }


def scope_digest(scope):
    return sha256(b"oncegate-scope-1" + framed(scope["kind"].encode()) + octets(scope["value"]))


def forwarded(given):
    parts = framed(given["route"].encode()) + framed(given["key"].encode())
    return sha256(b"oncegate-forwarded-1" + scope_digest(given["scope"]) + parts)


# --- fingerprints


def fingerprint(given):
    media_type = b",".join(essence(line) for line in lines_of(given, "content-type"))
    parts = [given["method"].encode(), given["target"].encode(), media_type, payload_digest(given)]
    hashed = b"oncegate-fingerprint-1" + b"".join(map(framed, parts))
    for name in sorted({name.lower() for name in given.get("identity", [])}):
        lines = lines_of(given, name)
        hashed += framed(name.encode()) + u64(len(lines)) + b"".join(map(framed, lines))
    return sha256(hashed)


def alike(given):
    scope = scope_digest(given["scope"])
    return sha256(b"oncegate-alike-1" + scope + framed(given["route"].encode()) + b"\x01" + fingerprint(given))


# --- what each file expects


def expect_client_key(given):
    try:
        return {"key": client_key(given)}
    except KeyRefused as refused:
        return {"refused": str(refused)}


def expect_payload(given):
    kind, canonical = payload(given)
    return {"kind": kind, "canonical": text(canonical), "digest": payload_digest(given).hex()}


def expect_derived(given):
    try:
        array = derived(given)
    except Missing as missing:
        return {"missing": str(missing)}
    return {"array": array, **spellings(sha256(array.encode()))}


def expect_stamped(given):
    return spellings(bytes([given["bucket"]]) + bytes.fromhex(given["random"])[1:])


def expect_forwarded(given):
    return {"scope": scope_digest(given["scope"]).hex(), **spellings(forwarded(given))}


def expect_fingerprint(given):
    return {"digest": fingerprint(given).hex(), "alike": alike(given).hex()}


FILES = {
    "client_keys.json": expect_client_key,
    "payloads.json": expect_payload,
    "derived_keys.json": expect_derived,
    "stamped_keys.json": expect_stamped,
    "forwarded_keys.json": expect_forwarded,
    "fingerprints.json": expect_fingerprint,
}


def main():
    folder = pathlib.Path(__file__).parent
    count, wrong = 0, 0
    for file, expect in FILES.items():
        for vector in json.loads((folder / file).read_text(encoding="utf-8")):
            count += 1
            found = expect(vector["given"])
            if found != vector["expect"]:
                wrong += 1
                print(f"{file}: {vector['name']}\n  written    {vector['expect']}\n  reproduced {found}")
    print(f"{count - wrong} of {count} vectors agree")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
