"""Lists the names of labels and annotations that more than one room reads, and recognises RFC 1123 labels.

The `io.kubernetes.*` labels are those that a real kubelet puts on the containers it has a runtime create; tools that
read them work on ours as well. The others are ours.
Source: apimachinery pkg/util/validation, IsDNS1123Label.
"""

from __future__ import annotations

import re
from typing import Final

DNS_RULE: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with "
    "an alphanumeric character"
)
"""What is wrong with a text that is not such a label, in the API server's words."""
SUBDOMAIN_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character"
)
_LONGEST_NAME: Final = 253
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DNS_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def is_dns_label(text: str) -> bool:
    """Return whether a text is an RFC 1123 label: it may be part of a host name or a path. At most 63 characters."""
    return _DNS_LABEL.fullmatch(text) is not None


def is_object_name(text: str) -> bool:
    """Return whether a text may name an object: an RFC 1123 subdomain of at most 253 characters."""
    return len(text) <= _LONGEST_NAME and is_dns_subdomain(text)


def is_dns_subdomain(text: str) -> bool:
    """Return whether a text has the form of an RFC 1123 subdomain, labels joined by dots, however long it is."""
    return _DNS_SUBDOMAIN.fullmatch(text) is not None


MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation of pods that a kubelet reports for its own files: no API can end those."""
OWN: Final = "fairlead.dev"
"""Domain of the names that only Fairlead writes, on whatever object."""


def is_own(name: str) -> bool:
    """Return whether a label or annotation is of our domain, or of one below it: only we may set it."""
    domain, slash, _ = name.rpartition("/")
    return bool(slash) and (domain == OWN or domain.endswith(f".{OWN}"))


# labels of an engine's container
POD_UID: Final = "io.kubernetes.pod.uid"
ARRAY: Final = "batch.kubernetes.io/job-name"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
"""Labels of the containers of one array, as those of an indexed Job's pods."""
POD_NAME: Final = "io.kubernetes.pod.name"
POD_NAMESPACE: Final = "io.kubernetes.pod.namespace"
CONTAINER_NAME: Final = "io.kubernetes.container.name"
ATTEMPT: Final = "fairlead.dev/attempt"
"""Counts from 0: how often the container had been started before."""
NODE: Final = "fairlead.dev/node"
HOME: Final = "fairlead.dev/home"
"""Unique id of the state folder whose container it is."""

USER_IDS: Final = "fairlead.dev/first-user-id"
"""Label of a sandbox, annotation of a user's namespace: where the ids of their user namespaces begin on the host."""
DEVICES: Final = "fairlead.dev/devices"
"""JSON, resource to the ids of the devices that its node's kubelet granted."""

# versions that NVLink needs to be one
FABRIC_MANAGER: Final = "fairlead.dev/fabric-manager"
"""Label of a node: the version of its Fabric Manager, such as 580.95.05."""
GUEST_DRIVER: Final = "fairlead.dev/guest-driver"
"""Annotation of a RuntimeClass: the version of the NVIDIA driver that its virtual machines boot."""

# annotations of a pod
TENANT: Final = "fairlead.dev/tenant"
"""The tenancy that asked for the pod, in whatever namespace it is: the rules for tenants bind it."""
ACCOUNT: Final = "fairlead.dev/account"
"""The account whose key asked for the pod, by TLS."""
REPLACED: Final = "fairlead.dev/replaced"
"""On a pod that is removed so that another one of its name can be stored: `fairlead restart`."""

RENAMED: Final = "fairlead.dev/renamed"
"""On the last state of an object that goes on under another name: that name. No stored object has it."""

# annotations of an event
STEP: Final = "fairlead.dev/step"
"""JSON, one step of a trace."""
