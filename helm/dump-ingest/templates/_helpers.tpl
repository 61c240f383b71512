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
app.kubernetes.io/name: {{ include "dump-ingest.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
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

{{- define "dump-ingest.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
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
{{- if kindIs "invalid" .Values.config.drain_s -}}30{{- else -}}{{ ceil .Values.config.drain_s }}{{- end -}}
{{- end -}}

{{/* Checks that the schema cannot express: values that contradict each other. configmap.yaml calls this once. */}}
{{- define "dump-ingest.validate" -}}
{{- $v := .Values -}}
{{- if $v.existingConfigMap -}}
{{- if or (gt (len $v.config) 1) $v.config.store -}}
{{- fail "config: must be empty if existingConfigMap names the settings" -}}
{{- end -}}
{{- else if not $v.config.store -}}
{{- fail "config.store: is required: the URL of the store, such as s3://bucket/run.zarr (or set existingConfigMap)" -}}
{{- end -}}
{{- range $name, $instead := dict "scheduler" "scheduler.enabled=false and scheduler.address" "metrics" "watcher.metrics" "consolidator_metrics" "consolidator.metricsPort" "worker_resources" "watcher.nodeLocal" "host" "nothing instead (it is always the name of the node)" "rules" "anomalyRules" -}}
{{- if hasKey $v.config $name -}}
{{- fail (printf "config.%s: is set by the chart; use %s" $name $instead) -}}
{{- end -}}
{{- end -}}
{{- if and $v.existingConfigMap (include "dump-ingest.hasRules" .) -}}
{{- fail "anomalyRules: cannot be combined with existingConfigMap; put rules.yaml into that ConfigMap, and set rules: /etc/dump-ingest/rules.yaml in its config.yaml" -}}
{{- end -}}
{{- $store := default "" $v.config.store -}}
{{- if and (hasPrefix "/" $store) (not $v.existingConfigMap) -}}
{{- if not $v.storage.existingClaim -}}
{{- fail (printf "config.store: %s is a directory that no container mounts; name its claim in storage.existingClaim" $store) -}}
{{- else if not (hasPrefix (printf "%s/" (trimSuffix "/" $v.storage.mountPath)) $store) -}}
{{- fail (printf "config.store: %s is not below storage.mountPath, %s" $store $v.storage.mountPath) -}}
{{- end -}}
{{- end -}}
{{- if and $v.storage.caBundle.existingConfigMap $v.storage.caBundle.existingSecret -}}
{{- fail "storage.caBundle: name a ConfigMap or a secret, not both" -}}
{{- end -}}
{{- $sources := 0 -}}
{{- range list $v.dump.hostPath $v.dump.existingClaim $v.dump.volume -}}
{{- if . -}}{{- $sources = add1 $sources -}}{{- end -}}
{{- end -}}
{{- $readsDump := or (has $v.watcher.mode (list "daemonset" "deployment")) (include "dump-ingest.hasWorkers" .) -}}
{{- if gt (int $sources) 1 -}}
{{- fail "dump: set one of hostPath, existingClaim and volume, not several" -}}
{{- else if and $readsDump (eq (int $sources) 0) -}}
{{- fail "dump: set one of hostPath, existingClaim and volume, to say where the dump is" -}}
{{- end -}}
{{- $mount := trimSuffix "/" $v.dump.mountPath -}}
{{- if and $v.dump.directory (ne $v.dump.directory $mount) (not (hasPrefix (printf "%s/" $mount) $v.dump.directory)) -}}
{{- fail (printf "dump.directory: %s is not below dump.mountPath, %s" $v.dump.directory $mount) -}}
{{- end -}}
{{- if and $v.scheduler.enabled $v.scheduler.address -}}
{{- fail "scheduler.address: names another scheduler; set scheduler.enabled=false with it" -}}
{{- end -}}
{{- if and $v.scheduler.enabled (not $v.dask.tls.enabled) (ne $v.scheduler.service.type "ClusterIP") -}}
{{- fail (printf "scheduler.service.type: %s opens the scheduler to others, who could run code there; it needs dask.tls.enabled=true" $v.scheduler.service.type) -}}
{{- end -}}
{{- if and $v.scheduler.address (not $v.scheduler.enabled) -}}
{{- $isTls := hasPrefix "tls://" $v.scheduler.address -}}
{{- if and $v.dask.tls.enabled (not $isTls) -}}
{{- fail (printf "scheduler.address: %s is not encrypted; use tls://, or set dask.tls.enabled=false" $v.scheduler.address) -}}
{{- else if and $isTls (not $v.dask.tls.enabled) -}}
{{- fail (printf "scheduler.address: %s needs dask.tls.enabled=true" $v.scheduler.address) -}}
{{- else if and $isTls (eq $v.dask.tls.source "generate") -}}
{{- fail "dask.tls.source: generate makes a CA that the scheduler at scheduler.address does not know; use existingSecret or certManager" -}}
{{- end -}}
{{- end -}}
{{- if and (include "dump-ingest.usesTls" .) (eq $v.dask.tls.source "existingSecret") (not $v.dask.tls.existingSecret) -}}
{{- fail "dask.tls.existingSecret: is required if dask.tls.source is existingSecret" -}}
{{- end -}}
{{- if and $v.dask.tls.existingSecret (ne $v.dask.tls.source "existingSecret") -}}
{{- fail (printf "dask.tls.existingSecret: is not used if dask.tls.source is %s; set dask.tls.source=existingSecret" $v.dask.tls.source) -}}
{{- end -}}
{{- if and (include "dump-ingest.hasNearWorkers" .) (lt (int $v.watcher.worker.count) 1) -}}
{{- fail "watcher.worker.count: must be at least 1 if watcher.nodeLocal is on: no other worker could run the tasks" -}}
{{- end -}}
{{- if and (include "dump-ingest.usesCluster" .) $v.scheduler.enabled (not (include "dump-ingest.isNodeLocal" .)) (not (include "dump-ingest.hasWorkers" .)) -}}
{{- fail "worker.enabled: must not be false if watcher.nodeLocal is off: no worker could run the tasks" -}}
{{- end -}}
{{- if and (eq $v.watcher.mode "daemonset") (not (include "dump-ingest.isNodeLocal" .)) $v.dump.hostPath -}}
{{- /* Either every watcher would see every dump, or no worker would see the dump: both are mistakes. */ -}}
{{- fail "watcher.nodeLocal: must not be false in a daemonset that watches dump.hostPath; if all nodes share the file system, use watcher.mode=deployment" -}}
{{- end -}}
{{- $lastPort := add $v.watcher.worker.firstPort (mul 3 (int $v.watcher.worker.count)) -1 -}}
{{- if gt (int $lastPort) 65535 -}}
{{- fail (printf "watcher.worker.firstPort: %d workers need ports up to %d" (int $v.watcher.worker.count) (int $lastPort)) -}}
{{- end -}}
{{- if and (ge (int $v.watcher.metrics.port) (int $v.watcher.worker.firstPort)) (le (int $v.watcher.metrics.port) (int $lastPort)) (include "dump-ingest.hasNearWorkers" .) -}}
{{- fail (printf "watcher.metrics.port: %d is a port of the workers in the watcher's pod (watcher.worker.firstPort)" (int $v.watcher.metrics.port)) -}}
{{- end -}}
{{- if ne (len (uniq (list (int $v.worker.ports.worker) (int $v.worker.ports.nanny) (int $v.worker.ports.http)))) 3 -}}
{{- fail "worker.ports: worker, nanny and http must differ" -}}
{{- end -}}
{{- if eq (int $v.scheduler.port) (int $v.scheduler.httpPort) -}}
{{- fail "scheduler.httpPort: must differ from scheduler.port" -}}
{{- end -}}
{{- $drain := include "dump-ingest.drainSeconds" . | int -}}
{{- $grace := $v.watcher.terminationGracePeriodSeconds -}}
{{- if and (not (kindIs "invalid" $grace)) (le (int $grace) $drain) -}}
{{- fail (printf "watcher.terminationGracePeriodSeconds: %d would kill the watcher before it has finished its current work; it must be more than config.drain_s, %d" (int $grace) $drain) -}}
{{- end -}}
{{- with $v.worker.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail "worker.autoscaling.minReplicas: is greater than maxReplicas" -}}
{{- end -}}
{{- if and .enabled (eq .kind "keda") (not .keda.serverAddress) -}}
{{- fail "worker.autoscaling.keda.serverAddress: is required if worker.autoscaling.kind is keda: the URL of Prometheus" -}}
{{- end -}}
{{- end -}}
{{- end -}}
