{{- define "dump-ingest.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 45 characters, which leaves 18 of 63 for the suffix. A name that is cut off gets a hash. */}}
{{- define "dump-ingest.fullname" -}}
{{- $name := include "dump-ingest.name" . -}}
{{- $full := .Values.fullnameOverride -}}
{{- if not $full -}}
{{- $full = ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- end -}}
{{- /* The name of a service must not contain dots, and must begin with a letter. */ -}}
{{- $full = replace "." "-" $full -}}
{{- if regexMatch "^[0-9]" $full -}}{{- $full = printf "r%s" $full -}}{{- end -}}
{{- if gt (len $full) 45 -}}
{{- $full = printf "%s-%s" ($full | trunc 36 | trimSuffix "-") ($full | sha256sum | trunc 8) -}}
{{- end -}}
{{- $full -}}
{{- end -}}

{{- define "dump-ingest.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select pods. They are immutable, so nothing that may change belongs here. Takes (dict "root" $ "component" ...). */}}
{{- define "dump-ingest.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dump-ingest.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "dump-ingest.labels" -}}
{{ include "dump-ingest.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ include "dump-ingest.chart" .root }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "dump-ingest.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "dump-ingest.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.schedulerAccountName" -}}
{{- with .Values.scheduler.serviceAccount -}}
{{- default (ternary (printf "%s-scheduler" (include "dump-ingest.fullname" $)) "default" .create) .name -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.image" -}}
{{- $name := .Values.image.repository -}}
{{- with default .Values.image.registry .Values.global.imageRegistry -}}
{{- $name = printf "%s/%s" (trimSuffix "/" .) $name -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Secrets for pulling images, as a map with the key `all`. */}}
{{- define "dump-ingest.pullSecrets" -}}
{{- $all := list -}}
{{- range concat .Values.image.pullSecrets .Values.global.imagePullSecrets -}}
{{- $all = append $all (dict "name" (ternary . (get (ternary dict . (kindIs "string" .)) "name") (kindIs "string" .))) -}}
{{- end -}}
{{- toYaml (dict "all" (uniq $all)) -}}
{{- end -}}

{{/* The version of Kubernetes. Without a cluster, Helm assumes a new one. */}}
{{- define "dump-ingest.kubeVersion" -}}
{{- default .Capabilities.KubeVersion.Version .Values.kubeVersionOverride -}}
{{- end -}}

{{/* What this chart was made for: the options of commands, and more. See helm/known.py. */}}
{{- define "dump-ingest.known" -}}
{{- .Files.Get "files/known.yml" -}}
{{- end -}}

{{/* In a training pod, names of containers begin with `dump-ingest-` and names of ports with `di-`. */}}
{{- define "dump-ingest.inTrainingPod" -}}
{{- if eq .Values.watcher.mode "sidecar" -}}true{{- end -}}
{{- end -}}

{{/* The name of a container, or of a port, in the pod of the watcher. Takes (dict "root" $ "name" ...). */}}
{{- define "dump-ingest.containerName" -}}
{{- if include "dump-ingest.inTrainingPod" .root -}}dump-ingest-{{- end -}}{{- .name -}}
{{- end -}}
{{- define "dump-ingest.portName" -}}
{{- if include "dump-ingest.inTrainingPod" .root -}}di-{{- end -}}{{- .name -}}
{{- end -}}

{{/*
The named ports of each component, as maps `dask` (ports on which code can be run), `http` (ports to scrape), and
`labels` that select its pods.
*/}}
{{- define "dump-ingest.ports" -}}
{{- $all := dict -}}
{{- if .Values.scheduler.enabled -}}
{{- $_ := set $all "scheduler" (dict "dask" (list "dask") "http" (list "http")) -}}
{{- end -}}
{{- if include "dump-ingest.hasWorkers" . -}}
{{- $_ := set $all "worker" (dict "dask" (list "worker" "nanny") "http" (list "http")) -}}
{{- end -}}
{{- if ne .Values.watcher.mode "none" -}}
{{- $dask := list -}}
{{- $http := list (include "dump-ingest.portName" (dict "root" . "name" "metrics")) -}}
{{- if include "dump-ingest.hasNearWorkers" . -}}
{{- range $index := until (int .Values.watcher.worker.count) -}}
{{- range list "worker" "nanny" -}}
{{- $dask = append $dask (include "dump-ingest.portName" (dict "root" $ "name" (printf "%s-%d" . $index))) -}}
{{- end -}}
{{- $http = append $http (include "dump-ingest.portName" (dict "root" $ "name" (printf "http-%d" $index))) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $all "watcher" (dict "dask" $dask "http" $http) -}}
{{- end -}}
{{- if .Values.consolidator.enabled -}}
{{- $_ := set $all "consolidator" (dict "dask" list "http" (list "metrics")) -}}
{{- end -}}
{{- if .Values.page.enabled -}}
{{- $_ := set $all "page" (dict "dask" list "http" (list "page")) -}}
{{- end -}}
{{- range $component, $ports := $all -}}
{{- $labels := include "dump-ingest.selectorLabels" (dict "root" $ "component" $component) | fromYaml -}}
{{- if and (eq $component "watcher") (include "dump-ingest.inTrainingPod" $) -}}
{{- $labels = dict (printf "%s-sidecar" (include "dump-ingest.fullname" $)) "true" -}}
{{- end -}}
{{- $_ := set $ports "labels" $labels -}}
{{- end -}}
{{- toYaml $all -}}
{{- end -}}

{{/* Maps merged key by key; later ones take precedence. `mergeOverwrite` would not let `false` replace `true`. */}}
{{- define "dump-ingest.merged" -}}
{{- $merged := dict -}}
{{- range $one := . -}}
{{- range $key, $value := $one -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- end -}}
{{- toYaml $merged -}}
{{- end -}}

{{/* The following templates answer questions about the mode with "true" or "". */}}

{{- define "dump-ingest.usesCluster" -}}
{{- if or .Values.scheduler.enabled .Values.scheduler.address -}}true{{- end -}}
{{- end -}}

{{- define "dump-ingest.usesTls" -}}
{{- if and (include "dump-ingest.usesCluster" .) .Values.dask.tls.enabled -}}true{{- end -}}
{{- end -}}

{{- define "dump-ingest.isNodeLocal" -}}
{{- if eq .Values.watcher.mode "none" -}}
{{- else if kindIs "invalid" .Values.watcher.nodeLocal -}}
{{- if ne .Values.watcher.mode "deployment" -}}true{{- end -}}
{{- else if .Values.watcher.nodeLocal -}}true
{{- end -}}
{{- end -}}

{{/* Whether the watcher's pod has workers, to which its tasks are pinned. */}}
{{- define "dump-ingest.hasNearWorkers" -}}
{{- if and (include "dump-ingest.usesCluster" .) (include "dump-ingest.isNodeLocal" .) -}}true{{- end -}}
{{- end -}}

{{- define "dump-ingest.hasWorkers" -}}
{{- if not (include "dump-ingest.usesCluster" .) -}}
{{- else if kindIs "invalid" .Values.worker.enabled -}}
{{- if not (include "dump-ingest.isNodeLocal" .) -}}true{{- end -}}
{{- else if .Values.worker.enabled -}}true
{{- end -}}
{{- end -}}

{{- define "dump-ingest.schedulerAddress" -}}
{{- if .Values.scheduler.enabled -}}
{{- $protocol := ternary "tls" "tcp" .Values.dask.tls.enabled -}}
{{- printf "%s://%s-scheduler.%s.svc:%v" $protocol (include "dump-ingest.fullname" .) .Release.Namespace .Values.scheduler.port -}}
{{- else -}}
{{- .Values.scheduler.address -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.hasRules" -}}
{{- if or .Values.anomalyRules.rules (not .Values.anomalyRules.builtin) -}}true{{- end -}}
{{- end -}}

{{- define "dump-ingest.dumpDirectory" -}}
{{- default .Values.dump.mountPath .Values.dump.directory -}}
{{- end -}}

{{- define "dump-ingest.drainSeconds" -}}
{{- if not (kindIs "invalid" .Values.config.drain_s) -}}{{ ceil .Values.config.drain_s }}
{{- else if include "dump-ingest.inTrainingPod" . -}}300
{{- else -}}30{{- end -}}
{{- end -}}
