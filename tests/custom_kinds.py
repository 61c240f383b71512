"""What objects of kinds that Kubernetes itself does not know may hold: the fields of them that the chart has.

Written from their published definitions: KEDA 2, VerticalPodAutoscaler 1, OpenShift 4, Prometheus Operator,
cert-manager 1 and Gateway API 1. A field that is not here is an error, as a server that validates strictly
says it; `*` marks what must be there.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_LABELS: Mapping[str, Any] = {"matchLabels": dict}
_STRATEGY: Mapping[str, Any] = {"*type": {"RunAsAny", "MustRunAs", "MustRunAsRange", "MustRunAsNonRoot"}}
_RELABELING: Mapping[str, Any] = {
    "sourceLabels": [str],
    "targetLabel": str,
    "replacement": str,
    "regex": str,
    "action": str,
}
_ENDPOINT: Mapping[str, Any] = {
    "*port": str,
    "path": str,
    "interval": str,
    "scrapeTimeout": str,
    "scheme": {"http", "https"},
    "tlsConfig": dict,
    "authorization": {"type": str, "credentials": {"*key": str, "*name": str, "optional": bool}},
    "relabelings": [_RELABELING],
    "metricRelabelings": [_RELABELING],
}
_MONITOR: Mapping[str, Any] = {
    "*selector": _LABELS,
    "namespaceSelector": {"matchNames": [str]},
    "sampleLimit": int,
    "attachMetadata": {"node": bool},
    "jobLabel": str,
}
_RULE: Mapping[str, Any] = {
    "*expr": str,
    "record": str,
    "alert": str,
    "for": str,
    "labels": dict,
    "annotations": dict,
}

#: By version and kind: what stands beside `metadata`.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "keda.sh/v1alpha1/ScaledObject": {
        "*spec": {
            "*scaleTargetRef": {"*name": str, "kind": str, "apiVersion": str},
            "minReplicaCount": int,
            "maxReplicaCount": int,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": dict}},
            "*triggers": [
                {
                    "*type": {"prometheus"},
                    "metricType": {"AverageValue", "Value", "Utilization"},
                    "*metadata": {"*serverAddress": str, "*query": str, "*threshold": str},
                }
            ],
        }
    },
    "autoscaling.k8s.io/v1/VerticalPodAutoscaler": {
        "*spec": {
            "*targetRef": {"*kind": str, "*name": str, "apiVersion": str},
            "updatePolicy": {
                "updateMode": {"Off", "Initial", "Recreate", "InPlaceOrRecreate", "Auto"},
                "minReplicas": int,
            },
            "resourcePolicy": {
                "containerPolicies": [
                    {
                        "containerName": str,
                        "controlledResources": [{"cpu", "memory"}],
                        "minAllowed": dict,
                        "maxAllowed": dict,
                        "mode": {"Auto", "Off"},
                    }
                ]
            },
        }
    },
    "security.openshift.io/v1/SecurityContextConstraints": {
        "*priority": int,
        **{
            f"*{name}": bool
            for name in (
                "allowHostDirVolumePlugin",
                "allowHostIPC",
                "allowHostNetwork",
                "allowHostPID",
                "allowHostPorts",
                "allowPrivilegedContainer",
                "readOnlyRootFilesystem",
            )
        },
        "allowPrivilegeEscalation": bool,
        **{
            f"*{name}": [str]
            for name in (
                "allowedCapabilities",
                "defaultAddCapabilities",
                "requiredDropCapabilities",
                "volumes",
            )
        },
        **dict.fromkeys(("runAsUser", "seLinuxContext", "fsGroup", "supplementalGroups"), _STRATEGY),
        **{name: [str] for name in ("users", "groups", "seccompProfiles")},
    },
    "monitoring.coreos.com/v1/PodMonitor": {
        "*spec": {**_MONITOR, "*podMetricsEndpoints": [_ENDPOINT], "podTargetLabels": [str]}
    },
    "monitoring.coreos.com/v1/ServiceMonitor": {
        "*spec": {**_MONITOR, "*endpoints": [_ENDPOINT], "targetLabels": [str]}
    },
    "monitoring.coreos.com/v1/PrometheusRule": {"*spec": {"groups": [{"*name": str, "rules": [_RULE]}]}},
    "cert-manager.io/v1/Certificate": {
        "*spec": {
            "*secretName": str,
            "*issuerRef": {"*name": str, "kind": str, "group": str},
            "commonName": str,
            "dnsNames": [str],
            "duration": str,
            "renewBefore": str,
            "isCA": bool,
            "usages": [str],
            "privateKey": {"algorithm": {"RSA", "ECDSA", "Ed25519"}, "size": int, "rotationPolicy": str},
        }
    },
    "cert-manager.io/v1/Issuer": {"*spec": {"ca": {"*secretName": str}, "selfSigned": dict}},
    "gateway.networking.k8s.io/v1/HTTPRoute": {
        "*spec": {
            "parentRefs": [{"*name": str, "namespace": str, "sectionName": str, "port": int}],
            "hostnames": [str],
            "rules": [
                {
                    "matches": [{"path": {"type": {"Exact", "PathPrefix"}, "value": str}}],
                    "backendRefs": [{"*name": str, "port": int, "weight": int}],
                }
            ],
        }
    },
}
_OF_ALL = {"apiVersion": str, "kind": str, "*metadata": dict}


def problems(manifest: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with an object of one of `KINDS`, with the path of each mistake."""
    kind = f"{manifest['apiVersion']}/{manifest['kind']}"
    return [f"{kind}{problem}" for problem in _problems(manifest, {**KINDS[kind], **_OF_ALL}, "")]


def _problems(value: object, form: Any, path: str) -> Iterator[str]:
    match form:
        case Mapping() if isinstance(value, Mapping):
            yield from _problems_of_map(value, form, path)
        case [inner] if isinstance(value, list):
            for number, item in enumerate(value):
                yield from _problems(item, inner, f"{path}[{number}]")
        case set():
            if value not in form:
                yield f"{path}: {value!r} is none of {sorted(form)}"
        case type() if isinstance(value, form) and not (form is int and isinstance(value, bool)):
            return
        case _:
            yield f"{path}: {value!r} is not of type {getattr(form, '__name__', type(form).__name__)}"


def _problems_of_map(value: Mapping[str, Any], form: Mapping[str, Any], path: str) -> Iterator[str]:
    fields = {name.removeprefix("*"): inner for name, inner in form.items()}
    yield from (f"{path}.{name}: there is no such field" for name in value if name not in fields)
    yield from (f"{path}.{name}: is missing" for name in fields if f"*{name}" in form and name not in value)
    for name in fields.keys() & value.keys():
        yield from _problems(value[name], fields[name], f"{path}.{name}")
