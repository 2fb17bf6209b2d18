"""The blocks of docs/conv_algorithms.md, which tools/make_conv_doc.py makes."""

from __future__ import annotations

import make_conv_doc

from pages.blocks import BLOCKS

BLOCKS.update(make_conv_doc.makers(make_conv_doc.committed()))
