"""Reads and writes JSON with the standard library's C scanner and encoder, without the packages around them.

`import json` costs a cold process 8 ms, most of it for regular expressions; its C parts cost 0.3 ms. They are private,
so a Python without them gets `json` itself, and the tests compare both on every version. What is read or written is
the same: `decode` refuses what `json.loads` refuses, `encode` gives the bytes of `fairlead_cdi.oci.encode_config`.
"""

try:
    import _json
except ImportError:
    import json

    def decode(data: bytes) -> object:
        """Decode one document. Raises: ValueError: not JSON, or nested too deeply."""
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("nested too deeply") from None

    def encode(value: object) -> bytes:
        """Encode plain values, compact, in ASCII. Raises: ValueError, TypeError: not plain."""
        return json.dumps(value, separators=(",", ":")).encode()

else:
    _SPACE = " \t\n\r"
    _CONSTANTS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": -float("inf")}

    class _Context:
        """What the scanner wants to know, as `json.JSONDecoder` would answer."""

        strict = True
        object_hook = None
        object_pairs_hook = None
        parse_float = float
        parse_int = int
        parse_constant = _CONSTANTS.__getitem__
        memo: dict[str, str] = {}  # noqa: RUF012  the scanner's own scratch space

    def _refuse(value: object) -> object:
        raise TypeError(f"{type(value).__name__} is not plain")

    _scan = _json.make_scanner(_Context)  # type: ignore[arg-type]  # any object with these attributes
    _emit = _json.make_encoder({}, _refuse, _json.encode_basestring_ascii, None, ":", ",", False, False, True)

    def decode(data: bytes) -> object:
        """Decode one document. Raises: ValueError: not JSON, or nested too deeply."""
        text = data.decode()
        start = len(text) - len(text.lstrip(_SPACE))
        try:
            value, end = _scan(text, start)
        except StopIteration:
            raise ValueError("no value") from None
        except RecursionError:
            raise ValueError("nested too deeply") from None
        except SystemError:
            # The scanner takes its error from `json`, and fails in another way where that is not loaded.
            import json

            found: object = json.loads(text)
            return found
        if text[end:].strip(_SPACE):
            raise ValueError(f"something follows the document at {end}")
        return value

    def encode(value: object) -> bytes:
        """Encode plain values, compact, in ASCII. Raises: ValueError, TypeError: not plain."""
        return "".join(_emit(value, 0)).encode()
