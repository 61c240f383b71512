{{/* In the training pod, the containers themselves set the user that they run as. */}}
{{- define "dump-ingest.watcherOwn" -}}
{{- if eq .Values.watcher.mode "sidecar" -}}
{{- $identity := include "dump-ingest.identity" (dict "root" . "role" .Values.watcher "dump" true) | fromYaml -}}
{{- pick $identity "runAsUser" "runAsGroup" "runAsNonRoot" "seccompProfile" "seLinuxOptions" | toYaml -}}
{{- end -}}
{{- end -}}

{{/* The place that tasks are pinned to: the node, or the training pod that contains the watcher. */}}
{{- define "dump-ingest.place" -}}
{{- ternary "POD_NAME" "NODE_NAME" (eq .Values.watcher.mode "sidecar") -}}
{{- end -}}

{{- define "dump-ingest.placeEnv" -}}
- name: {{ include "dump-ingest.place" . }}
  valueFrom:
    fieldRef:
      fieldPath: {{ ternary "metadata.name" "spec.nodeName" (eq .Values.watcher.mode "sidecar") }}
{{- end -}}

{{/* Whether the watcher is a native sidecar, too, which Kubernetes stops when the training job has ended. */}}
{{- define "dump-ingest.watcherIsSidecar" -}}
{{- if and (eq .Values.watcher.mode "sidecar") .Values.watcher.worker.nativeSidecar -}}true{{- end -}}
{{- end -}}

{{/*
Seconds that the pod of the watcher has to stop. In a training pod, the training containers use up their part of it
first: Kubernetes asks the watcher to end only after them.
*/}}
{{- define "dump-ingest.watcherGrace" -}}
{{- $given := .Values.watcher.terminationGracePeriodSeconds -}}
{{- if not (kindIs "invalid" $given) -}}
{{- int $given -}}
{{- else if include "dump-ingest.inTrainingPod" . -}}
{{- max 600 (add (include "dump-ingest.drainSeconds" . | int) 300) -}}
{{- else -}}
{{- add (include "dump-ingest.drainSeconds" . | int) 30 -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.watcherContainer" -}}
name: {{ include "dump-ingest.containerName" (dict "root" . "name" "watcher") }}
command: [dump-ingest]
args:
  - watch
  - {{ include "dump-ingest.dumpDirectory" . | quote }}
  - --config=/etc/dump-ingest/config.yaml
  {{- if include "dump-ingest.inTrainingPod" . }}
  # When it is asked to end, the job has ended: ingest what is there first.
  - --finish
  {{- end }}
  {{- with .Values.watcher.extraArgs }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
env:
  {{- include "dump-ingest.env" (dict "root" . "store" true "config" true) | nindent 2 }}
  {{- with include "dump-ingest.rulesEnv" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  - name: DUMP_INGEST_METRICS
    value: {{ printf "%s:%v" .Values.watcher.metrics.host .Values.watcher.metrics.port | quote }}
  {{- if include "dump-ingest.inTrainingPod" . }}
  - name: DUMP_INGEST_DRAIN_S
    value: {{ include "dump-ingest.drainSeconds" . | quote }}
  {{- end }}
  {{- if include "dump-ingest.usesCluster" . }}
  - name: DUMP_INGEST_SCHEDULER
    value: {{ include "dump-ingest.schedulerAddress" . | quote }}
  {{- else if not .Values.config.workers }}
  - name: DUMP_INGEST_WORKERS
    value: {{ .Values.watcher.ownWorkers | quote }}
  {{- end }}
  {{- if eq .Values.watcher.mode "deployment" }}
  # Not the name of the pod: it changes with each start, and device ids have a meaning only on their host.
  - name: DUMP_INGEST_HOST
    value: {{ include "dump-ingest.fullname" . }}-watcher
  {{- else }}
  {{- include "dump-ingest.placeEnv" . | nindent 2 }}
  - name: DUMP_INGEST_HOST
    value: $({{ include "dump-ingest.place" . }})
  {{- end }}
  {{- if include "dump-ingest.hasNearWorkers" . }}
  {{- if eq .Values.watcher.mode "deployment" }}
  {{- include "dump-ingest.placeEnv" . | nindent 2 }}
  {{- end }}
  - name: DUMP_INGEST_WORKER_RESOURCES
    value: host-$({{ include "dump-ingest.place" . }})=1
  {{- end }}
  {{- with .Values.watcher.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  - name: {{ include "dump-ingest.portName" (dict "root" . "name" "metrics") }}
    containerPort: {{ .Values.watcher.metrics.port }}
{{- $role := .Values.watcher }}
{{- if include "dump-ingest.inTrainingPod" . }}
{{- /* It must not keep the job from starting or from becoming ready. */}}
{{- $role = omit $role "startupProbe" "readinessProbe" }}
{{- with $role.livenessProbe }}
{{- $probe := include "dump-ingest.probeOf" (dict "probe" . "name" "metrics" "port" $.Values.watcher.metrics.port) | fromYaml }}
{{- $role = merge (dict "livenessProbe" $probe) $role }}
{{- end }}
{{- end }}
{{- if include "dump-ingest.watcherIsSidecar" . }}
restartPolicy: Always
{{- end }}
{{ include "dump-ingest.container" (dict "root" . "role" $role "own" (include "dump-ingest.watcherOwn" . | fromYaml)) }}
volumeMounts:
  {{- include "dump-ingest.mounts" (include "dump-ingest.watcherHolds" . | fromYaml | merge (dict "root" . "role" .Values.watcher)) | nindent 2 }}
{{- end -}}

{{/* A probe with the number of a port instead of its name. Takes (dict "probe" ... "name" "http" "port" 8802). */}}
{{- define "dump-ingest.probeOf" -}}
{{- $probe := deepCopy .probe -}}
{{- if eq (toString (dig "httpGet" "port" "" $probe)) .name -}}
{{- $_ := set $probe.httpGet "port" .port -}}
{{- end -}}
{{- toYaml $probe -}}
{{- end -}}

{{- define "dump-ingest.watcherHolds" -}}
config: true
store: true
dump: true
dask: {{ eq (include "dump-ingest.usesCluster" .) "true" }}
deletes: {{ or .Values.dump.writable (eq (default "keep" .Values.config.after_commit) "delete") }}
{{- end -}}

{{/* A worker in the watcher's pod. Takes (dict "root" $ "index" 0). */}}
{{- define "dump-ingest.nearWorkerContainer" -}}
{{- $values := .root.Values.watcher.worker -}}
{{- $first := add $values.firstPort (mul 3 .index) -}}
name: {{ include "dump-ingest.containerName" (dict "root" .root "name" (printf "worker-%d" .index)) }}
command: [dask]
args:
  {{- include "dump-ingest.workerArgs" (dict "root" .root "threads" $values.threads "ports" (list $first (add1 $first) (add $first 2))) | nindent 2 }}
  - --resources=host-$({{ include "dump-ingest.place" .root }})={{ $values.threads }}
env:
  {{- include "dump-ingest.env" (dict "root" .root "store" true) | nindent 2 }}
  {{- include "dump-ingest.placeEnv" .root | nindent 2 }}
  {{- with $values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
ports:
  {{- range $offset, $name := list "worker" "nanny" "http" }}
  - name: {{ include "dump-ingest.portName" (dict "root" $.root "name" (printf "%s-%d" $name $.index)) }}
    containerPort: {{ add $first $offset }}
  {{- end }}
{{- $role := pick $values "resources" "securityContext" "envFrom" -}}
{{- with $values.livenessProbe -}}
{{- $probe := include "dump-ingest.probeOf" (dict "probe" . "name" "http" "port" (add $first 2)) | fromYaml -}}
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

{{/* `initContainers` (native sidecars, which start before the other containers and end after them) and `containers`. */}}
{{- define "dump-ingest.watcherContainers" -}}
{{- $first := list -}}
{{- $beside := list -}}
{{- if include "dump-ingest.hasNearWorkers" . -}}
{{- range $index := until (int .Values.watcher.worker.count) -}}
{{- $beside = append $beside (include "dump-ingest.nearWorkerContainer" (dict "root" $ "index" $index)) -}}
{{- end -}}
{{- if .Values.watcher.worker.nativeSidecar -}}
{{- $first = $beside -}}
{{- $beside = list -}}
{{- end -}}
{{- end -}}
{{- $watcher := include "dump-ingest.watcherContainer" . -}}
{{- if include "dump-ingest.watcherIsSidecar" . -}}
{{- $first = append $first $watcher -}}
{{- else -}}
{{- $beside = prepend $beside $watcher -}}
{{- end -}}
{{- $others := dict "initContainers" .Values.watcher.initContainers "containers" .Values.watcher.extraContainers -}}
{{- range $name, $all := dict "initContainers" $first "containers" $beside -}}
{{- if or $all (get $others $name) }}
{{ $name }}:
  {{- if eq $name "initContainers" }}
  {{- with get $others $name }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- range $all }}
  - {{ . | nindent 4 | trim }}
  {{- end }}
  {{- if eq $name "containers" }}
  {{- with get $others $name }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- end }}
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
  {{- include "dump-ingest.pod" (include "dump-ingest.watcherHolds" . | fromYaml | merge (dict "root" . "role" .Values.watcher)) | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "dump-ingest.watcherGrace" . }}
  {{- include "dump-ingest.watcherContainers" . | trim | nindent 2 }}
  volumes:
    {{- include "dump-ingest.watcherVolumes" . | nindent 4 }}
{{- end -}}
