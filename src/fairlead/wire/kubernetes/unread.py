"""Distinguishes fields that Kubernetes has and nothing here reads from names that no field has.

A manifest may carry fields for a cluster that one machine has no use for: they are listed, so that callers can warn. A
name that Kubernetes does not have either is a slip of the pen and is refused, with the field that was meant. Some
fields change what a program sees when they are left out: those are refused rather than said.
Source: k8s.io/api/core/v1 types.go and apimachinery meta/v1, release 1.36.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fairlead import errors

_ABOUT: Final = frozenset(
    {
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "managedFields",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    }
)
_POD: Final = frozenset(
    {
        "automountServiceAccountToken",
        "dnsConfig",
        "dnsPolicy",
        "enableServiceLinks",
        "ephemeralContainers",
        "hostAliases",
        "hostPID",
        "hostUsers",
        "hostnameOverride",
        "imagePullSecrets",
        "os",
        "readinessGates",
        "resourceClaims",
        "resources",
        "runtimeClassName",
        "serviceAccount",
        "serviceAccountName",
        "setHostnameAsFQDN",
        "shareProcessNamespace",
        "subdomain",
        "topologySpreadConstraints",
        "workloadRef",
    }
)
_CONTAINER: Final = frozenset(
    {
        "lifecycle",
        "livenessProbe",
        "readinessProbe",
        "resizePolicy",
        "restartPolicyRules",
        "startupProbe",
        "stdinOnce",
        "terminationMessagePath",
        "terminationMessagePolicy",
    }
)
_RIGHTS: Final = frozenset(
    {
        "allowPrivilegeEscalation",
        "appArmorProfile",
        "capabilities",
        "fsGroup",
        "fsGroupChangePolicy",
        "privileged",
        "procMount",
        "readOnlyRootFilesystem",
        "seLinuxChangePolicy",
        "seLinuxOptions",
        "seccompProfile",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "sysctls",
        "windowsOptions",
    }
)
_SOURCES: Final = frozenset(
    {
        "awsElasticBlockStore",
        "azureDisk",
        "azureFile",
        "cephfs",
        "cinder",
        "configMap",
        "csi",
        "downwardAPI",
        "ephemeral",
        "fc",
        "flexVolume",
        "flocker",
        "gcePersistentDisk",
        "gitRepo",
        "glusterfs",
        "image",
        "iscsi",
        "nfs",
        "photonPersistentDisk",
        "portworxVolume",
        "projected",
        "quobyte",
        "rbd",
        "scaleIO",
        "storageos",
        "vsphereVolume",
    }
)

_KNOWN: Final[Mapping[str, frozenset[str]]] = {
    "Affinity": frozenset({"podAffinity", "podAntiAffinity"}),
    "Capabilities": frozenset({"add"}),
    "ClaimSpec": frozenset(
        {
            "accessModes",
            "dataSource",
            "dataSourceRef",
            "resources",
            "selector",
            "storageClassName",
            "volumeAttributesClassName",
            "volumeMode",
            "volumeName",
        }
    ),
    "Container": _CONTAINER,
    "ObjectMeta": _ABOUT,
    "PersistentVolumeClaim": frozenset({"status"}),
    "Pod": frozenset({"status"}),
    "PodSpec": _POD,
    "ResourceRequirements": frozenset({"claims"}),
    "SecurityContext": _RIGHTS,
    "Volume": _SOURCES,
    "VolumeMount": frozenset({"mountPropagation", "recursiveReadOnly"}),
}
"""Fields that Kubernetes has, by the struct of `core` or `meta` that does not read them."""

REFUSED_ONLY: Final[Mapping[str, frozenset[str]]] = {
    "Affinity": _KNOWN["Affinity"],
    "ClaimSpec": frozenset({"accessModes", "resources", "storageClassName", "volumeName"}),
    "PodSpec": frozenset({"hostUsers", "resourceClaims", "resources", "topologySpreadConstraints"}),
    "PersistentVolumeClaim": frozenset({"status"}),
    "Volume": frozenset({"awsElasticBlockStore", "ephemeral", "gcePersistentDisk", "iscsi", "rbd"}),
}
"""Of those, the fields that `core` reads so that a cluster's scheduler can refuse them; one machine leaves them out."""

_LONGEST: Final = 64
_NEEDED: Final[Mapping[str, frozenset[str]]] = {
    "Container": frozenset({"volumeDevices"}),
    "EnvFromSource": frozenset({"configMapRef"}),
    "EnvVarSource": frozenset({"configMapKeyRef", "fieldRef", "fileKeyRef", "resourceFieldRef"}),
    "VolumeMount": frozenset({"subPathExpr"}),
}
"""Fields without which the program would see something else than was written."""


def problem(struct: str, field: str, read: Iterable[str]) -> str | None:
    """Return what is wrong with a field that nothing reads; None: Kubernetes has it, and leaving it out may be said.

    Args:    struct: class of the object that has it.   read: the fields of that class.
    """
    known, needed = _KNOWN.get(struct), _NEEDED.get(struct, frozenset())
    if field in needed:
        return "is not carried out on one machine, and the program would see something else without it"
    if known is None and not needed:
        return None  # a kind whose fields are not listed here
    if field in (known or frozenset()):
        return None
    names = {*read, *(known or frozenset()), *needed}
    # Likeness costs the product of the lengths: a name this long is not a misspelled field.
    close = errors.closest(field, sorted(names)) if len(field) <= _LONGEST else ""
    return "unknown field" + (f', did you mean "{close}"?' if close else "")
