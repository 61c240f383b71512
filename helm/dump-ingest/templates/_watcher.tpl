{{/* In the pod of somebody else, the containers say themselves who they run as. */}}
{{- define "dump-ingest.watcherOwn" -}}
{{- if eq .Values.watcher.mode "sidecar" -}}
{{- $identity := include "dump-ingest.identity" (dict "root" . "role" .Values.watcher "readsDump" true) | fromYaml -}}
{{- pick $identity "runAsUser" "runAsGroup" "runAsNonRoot" "seccompProfile" "seLinuxOptions" | toYaml -}}
{{- end -}}
{{- end -}}

{{/* The place that tasks are pinned to: the node, or the training pod that the watcher is a part of. */}}
{{- define "dump-ingest.place" -}}
{{- ternary "POD_NAME" "NODE_NAME" (eq .Values.watcher.mode "sidecar") -}}
{{- end -}}

{{- define "dump-ingest.placeEnv" -}}
- name: {{ include "dump-ingest.place" . }}
  valueFrom:
    fieldRef:
      fieldPath: {{ ternary "metadata.name" "spec.nodeName" (eq .Values.watcher.mode "sidecar") }}
{{- end -}}

{{- define "dump-ingest.watcherGrace" -}}
{{- $drain := include "dump-ingest.drainSeconds" . | int -}}
{{- $given := .Values.watcher.terminationGracePeriodSeconds -}}
{{- if kindIs "invalid" $given -}}{{ add $drain 30 }}{{- else -}}{{ int $given }}{{- end -}}
{{- end -}}

{{- define "dump-ingest.watcherContainer" -}}
name: watcher
command: [dump-ingest]
args:
  - watch
  - {{ include "dump-ingest.dumpDirectory" . }}
  - --config=/etc/dump-ingest/config.yaml
  {{- with .Values.watcher.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  {{- include "dump-ingest.env" (dict "root" . "store" true) | nindent 2 }}
  - name: DUMP_INGEST_METRICS
    value: "{{ .Values.watcher.metrics.host }}:{{ .Values.watcher.metrics.port }}"
  {{- if include "dump-ingest.usesCluster" . }}
  - name: DUMP_INGEST_SCHEDULER
    value: {{ include "dump-ingest.schedulerAddress" . | quote }}
  {{- else if not .Values.config.workers }}
  - name: DUMP_INGEST_WORKERS
    value: {{ .Values.watcher.ownWorkers | quote }}
  {{- end }}
  {{- if include "dump-ingest.hasNearWorkers" . }}
  {{- include "dump-ingest.placeEnv" . | nindent 2 }}
  - name: DUMP_INGEST_WORKER_RESOURCES
    value: host-$({{ include "dump-ingest.place" . }})=1
  {{- end }}
  {{- with .Values.watcher.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: metrics
    containerPort: {{ .Values.watcher.metrics.port }}
{{ include "dump-ingest.container" (dict "root" . "role" .Values.watcher "own" (include "dump-ingest.watcherOwn" . | fromYaml)) }}
volumeMounts:
  {{- include "dump-ingest.mounts" (include "dump-ingest.watcherHolds" . | fromYaml | merge (dict "root" . "role" .Values.watcher)) | nindent 2 }}
{{- end -}}

{{- define "dump-ingest.watcherHolds" -}}
config: true
store: true
dump: true
dask: {{ eq (include "dump-ingest.usesCluster" .) "true" }}
{{- end -}}

{{/* A worker beside the watcher. Takes (dict "root" $ "index" 0). */}}
{{- define "dump-ingest.nearWorkerContainer" -}}
{{- $values := .root.Values.watcher.worker -}}
{{- $first := add $values.firstPort (mul 3 .index) -}}
name: worker-{{ .index }}
command: [dask]
args:
  {{- include "dump-ingest.workerArgs" (dict "root" .root "threads" $values.threads "ports" (list $first (add1 $first) (add $first 2))) | nindent 2 }}
  - --resources=host-$({{ include "dump-ingest.place" .root }})={{ $values.threads }}
env:
  {{- include "dump-ingest.env" (dict "root" .root "store" true) | nindent 2 }}
  {{- include "dump-ingest.memoryLimit" . | nindent 2 }}
  {{- include "dump-ingest.placeEnv" .root | nindent 2 }}
  {{- with $values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: worker-{{ .index }}
    containerPort: {{ $first }}
  - name: nanny-{{ .index }}
    containerPort: {{ add1 $first }}
  - name: http-{{ .index }}
    containerPort: {{ add $first 2 }}
{{- $role := pick $values "resources" "securityContext" -}}
{{- with $values.livenessProbe -}}
{{- /* Their ports have names of their own, so the name `http` stands for the number. */ -}}
{{- $probe := deepCopy . -}}
{{- if eq (toString (dig "httpGet" "port" "" $probe)) "http" -}}
{{- $_ := set $probe.httpGet "port" (add $first 2) -}}
{{- end -}}
{{- $_ := set $role "livenessProbe" $probe -}}
{{- end -}}
{{- if $values.nativeSidecar }}
restartPolicy: Always
{{- else -}}
{{- $drain := include "dump-ingest.drainSeconds" .root -}}
{{- $_ := set $role "lifecycle" (dict "preStop" (dict "exec" (dict "command" (list "sleep" $drain)))) -}}
{{- end }}
{{ include "dump-ingest.container" (dict "root" .root "role" $role "own" (include "dump-ingest.watcherOwn" .root | fromYaml)) }}
volumeMounts:
  {{- include "dump-ingest.mounts" (dict "root" .root "role" .root.Values.watcher "store" true "dump" true "dask" true) | nindent 2 }}
{{- end -}}

{{/* `initContainers` and `containers` of the watcher's pod. */}}
{{- define "dump-ingest.watcherContainers" -}}
{{- $near := include "dump-ingest.hasNearWorkers" . -}}
{{- $native := .Values.watcher.worker.nativeSidecar -}}
{{- $count := ternary (int .Values.watcher.worker.count) 0 (eq $near "true") -}}
{{- if and $native $count }}
initContainers:
  {{- range $index := until $count }}
  - {{ include "dump-ingest.nearWorkerContainer" (dict "root" $ "index" $index) | nindent 4 | trim }}
  {{- end }}
{{- end }}
containers:
  - {{ include "dump-ingest.watcherContainer" . | nindent 4 | trim }}
  {{- if not $native }}
  {{- range $index := until $count }}
  - {{ include "dump-ingest.nearWorkerContainer" (dict "root" $ "index" $index) | nindent 4 | trim }}
  {{- end }}
  {{- end }}
{{- end -}}

{{- define "dump-ingest.watcherVolumes" -}}
{{- include "dump-ingest.volumes" (include "dump-ingest.watcherHolds" . | fromYaml | merge (dict "root" . "role" .Values.watcher)) -}}
{{- end -}}

{{- define "dump-ingest.watcherPod" -}}
metadata:
  {{- include "dump-ingest.podMetadata" (include "dump-ingest.watcherHolds" . | fromYaml | merge (dict "root" . "role" .Values.watcher "component" "watcher")) | nindent 2 }}
spec:
  {{- include "dump-ingest.pod" (dict "root" . "role" .Values.watcher "readsDump" true) | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "dump-ingest.watcherGrace" . }}
  {{- include "dump-ingest.watcherContainers" . | trim | nindent 2 }}
  volumes:
    {{- include "dump-ingest.watcherVolumes" . | nindent 4 }}
{{- end -}}
