"""Audit any causal language model for phase sensitivity: needle, completion or recall, and one page.

``interp.audit`` as an attribute of the package is the verb :func:`audit`; modules of this package are
imported by their full names.
"""

from interp.audit.run import audit, audit_published, export

__all__ = ["audit", "audit_published", "export"]
