"""Limits of the chart's values: JSON schema beyond the type of each default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NAME = {"pattern": r"^$|^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"}
_PORT = {"minimum": 1, "maximum": 65535}
_ABSOLUTE = {"pattern": r"^/"}
_ABSOLUTE_OR_NONE = {"pattern": r"^$|^/"}
_DURATION = {"pattern": r"^([0-9]+(ms|s|m|h|d|w))+$"}
#: Units that Dask knows; with any other, a worker ends at its start.
_DASK_DURATION = "[0-9]+ ?(s|m|h|d|w|seconds?|minutes?|hours?|days?|weeks?)"
_STRINGS = {"additionalProperties": {"type": "string"}}
_OBJECTS = {"items": {"type": "object"}}
_NAMED = {"items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}}
_TEXTS = {"items": {"type": "string"}}
_QUANTITIES = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}

_CONTAINERS = {
    "items": {
        "type": "object",
        "required": ["name", "image"],
        "properties": {"name": {"type": "string"}, "image": {"type": "string"}},
    }
}
_REGISTRY = r"^$|^[a-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$"

#: JSON schema of values beyond the type of their default, by the end of the path of a value.
LIMITS: Mapping[str, Mapping[str, Any]] = {
    "activeDeadlineSeconds": {"minimum": 1},
    "affinity": {},
    "annotations": _STRINGS,
    "anomalyRules.rules": {"items": {"$ref": "#/definitions/rule"}},
    "attachMetadata": {"additionalProperties": {"type": "boolean"}},
    "authorization": {},
    "autoscaling.kind": {"enum": ["hpa", "keda"]},
    "autoscaling.metrics": _OBJECTS,
    "basicAuth": {},
    "certManager.duration": {"pattern": r"^([0-9]+(s|m|h))+$"},
    "certManager.issuerRef": {
        "additionalProperties": False,
        "properties": {name: {"type": "string"} for name in ("name", "kind", "group")},
    },
    "certManager.renewBefore": {"pattern": r"^([0-9]+(s|m|h))+$"},
    "commonLabels": _STRINGS,
    "controlledResources": {"items": {"enum": ["cpu", "memory"]}, "minItems": 1},
    # In a file, Dask does not split keys at dots.
    "dask.config": {"patternProperties": {"^[^.]+$": {}}, "additionalProperties": False},
    "dnsConfig": {
        "additionalProperties": False,
        "properties": {name: {"type": "array"} for name in ("nameservers", "searches", "options")},
    },
    "dnsPolicy": {"enum": ["", "ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]},
    "dump.directory": _ABSOLUTE_OR_NONE,
    "dump.hostPath": _ABSOLUTE_OR_NONE,
    "dump.runAsGroup": {"type": ["integer", "null"], "minimum": 0},
    "dump.runAsUser": {"type": ["integer", "null"], "minimum": 0},
    "dump.supplementalGroups": {"items": {"type": "integer", "minimum": 0}},
    "egress.to": _OBJECTS,
    "existingClaim": _NAME,
    "existingConfigMap": _NAME,
    "existingSecret": _NAME,
    "envFrom": _OBJECTS,
    "expectedRanks": {"type": ["integer", "null"], "minimum": 1},
    "extraArgs": _TEXTS,
    "extraContainers": _CONTAINERS,
    "extraEnv": {
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
        }
    },
    "extraFrom": _OBJECTS,
    "extraManifests": {"items": {"type": ["object", "string"], "required": ["apiVersion", "kind"]}},
    "extraVolumeMounts": {
        "items": {
            "type": "object",
            "required": ["name", "mountPath"],
            "properties": {"name": {"type": "string"}, "mountPath": {"type": "string"} | _ABSOLUTE},
        }
    },
    "extraVolumes": _NAMED,
    "failedJobsHistoryLimit": {"minimum": 0},
    "firstPort": _PORT,
    "fsGroup": {"type": ["integer", "null"], "minimum": 0},
    "fullnameOverride": _NAME,
    "global.imagePullSecrets": {"items": {"type": ["object", "string"]}},
    "hostAliases": {"items": {"type": "object", "required": ["ip", "hostnames"]}},
    "hostnames": _TEXTS,
    "httpPort": _PORT,
    "image.digest": {"pattern": r"^$|^sha256:[0-9a-f]{64}$"},
    "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
    "image.pullSecrets": _NAMED,
    "image.repository": {"pattern": r"^[a-z0-9._:/-]*$"},
    "imageRegistry": {"pattern": _REGISTRY},
    "image.registry": {"pattern": _REGISTRY},
    "runbookUrlPrefix": {"pattern": r"^$|^https?://"},
    "image.tag": {"pattern": r"^$|^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$"},
    "ingress.host": {"pattern": r"^$|^(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"},
    "initContainers": _CONTAINERS,
    "kubeVersionOverride": {"pattern": r"^$|^v?1\.[0-9]+"},
    "interval": _DURATION,
    "keda.serverAddress": {"pattern": r"^$|^https?://"},
    "labels": _STRINGS,
    "lifetime": {"pattern": rf"^$|^{_DASK_DURATION}$"},
    "lifetimeStagger": {"pattern": rf"^{_DASK_DURATION}$"},
    "maxAllowed": _QUANTITIES,
    "maxReplicas": {"minimum": 1},
    "maxUnavailable": {"type": ["integer", "string"], "minimum": 0, "pattern": "^[0-9]+%$"},
    "metricRelabelings": _OBJECTS,
    "metricsPort": _PORT,
    "minAllowed": _QUANTITIES,
    "minReadySeconds": {"minimum": 0},
    "minReplicas": {"minimum": 0},
    "monitoringFrom": _OBJECTS,
    "mountPath": _ABSOLUTE,
    "nameOverride": _NAME,
    "namespace": _NAME,
    "nodeSelector": _STRINGS,
    "ownWorkers": {"minimum": 1},
    "page.basePath": {"pattern": r"^$|^(/[A-Za-z0-9_.~-]+)+$"},
    "page.cacheSize": {"pattern": r"^[0-9]+(\.[0-9]+)?([kMGT]i?)?B?$"},
    "page.from": _OBJECTS,
    "page.refreshSeconds": {"type": "number", "minimum": 0.2},
    "page.trustHeader": {"pattern": r"^$|^[A-Za-z][A-Za-z0-9-]*$"},
    "parentRefs": _NAMED,
    "patienceSeconds": {"type": "number", "minimum": 0},
    "podAnnotations": _STRINGS,
    "podLabels": _STRINGS,
    "podTargetLabels": _TEXTS,
    "pollSeconds": {"type": "number", "minimum": 0.1},
    "port": _PORT,
    "podMonitor.ports": _STRINGS,
    "ports.http": _PORT,
    "ports.nanny": _PORT,
    "ports.worker": _PORT,
    "prometheusRule.disabled": _TEXTS,
    "prometheusRule.overrides": {
        "additionalProperties": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "expr": {"type": "string", "minLength": 1},
                "for": _DURATION | {"type": "string"},
                "keep_firing_for": _DURATION | {"type": "string"},
                "labels": _STRINGS | {"type": "object"},
                "annotations": _STRINGS | {"type": "object"},
            },
        }
    },
    "relabelings": _OBJECTS,
    "replicas": {"minimum": 0},
    "resources": {
        "additionalProperties": False,
        "properties": {"limits": _QUANTITIES, "requests": _QUANTITIES, "claims": {"type": "array"}},
    },
    "revisionHistoryLimit": {"minimum": 0},
    "ruleLabels": _STRINGS,
    "sampleLimit": {"minimum": 0},
    "scheduler.address": {"pattern": r"^$|^(tcp|tls)://[^/]+:[0-9]+$"},
    "scheme": {"enum": ["http", "https"]},
    "scrapeTimeout": _DURATION,
    "service.type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    "serviceAccount.name": _NAME,
    "serviceMonitor.ports": _STRINGS,
    "startingDeadlineSeconds": {"minimum": 10},
    "storage.endpointUrl": {"pattern": r"^$|^https?://"},
    "successfulJobsHistoryLimit": {"minimum": 0},
    "targetCPUUtilizationPercentage": {"minimum": 1},
    "terminationGracePeriodSeconds": {"type": ["integer", "null"], "minimum": 0},
    "threads": {"minimum": 1, "maximum": 64},
    "tlsSecret": _NAME,
    "tls.source": {"enum": ["generate", "certManager", "existingSecret"]},
    "timeZone": {"pattern": r"^$|^[A-Za-z]+([/_+-][A-Za-z0-9_+-]+)*$"},
    "tlsConfig": {},
    "tmpSizeLimit": {"pattern": r"^[0-9.]+([kKMGT]i?)?$"},
    "tolerations": _OBJECTS,
    "topologySpreadConstraints": _OBJECTS,
    "trainingPods": {"enum": ["open", "isolated", "none"]},
    "ttlSecondsAfterFinished": {"minimum": 60},
    "updateMode": {"enum": ["Off", "Initial", "Recreate", "Auto"]},
    "validityDays": {"minimum": 1},
    "watcher.mode": {"enum": ["daemonset", "deployment", "sidecar", "none"]},
    "watcher.nodeLocal": {"type": ["boolean", "null"]},
    "watcher.worker.count": {"minimum": 0, "maximum": 32},
    "worker.enabled": {"type": ["boolean", "null"]},
}
