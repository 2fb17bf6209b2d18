"""Views as JSON documents.

May import ``base``. Start reading at ``document``.
"""
