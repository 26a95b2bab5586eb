"""What tests of the report share."""

import json
import re


def data_of(path):
    """Return the data that a page brings."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"))
    return json.loads(text)
