{{/*
Checks that the schema cannot express. Each message names the value and what to write instead. configmap.yaml calls this
once.
*/}}
{{- define "dump-ingest.validate" -}}
{{- include "dump-ingest.validateCluster" . -}}
{{- include "dump-ingest.validateConfig" . -}}
{{- include "dump-ingest.validateRules" . -}}
{{- include "dump-ingest.validateDump" . -}}
{{- include "dump-ingest.validateScheduler" . -}}
{{- include "dump-ingest.validatePods" . -}}
{{- include "dump-ingest.validateSidecar" . -}}
{{- include "dump-ingest.validateScaling" . -}}
{{- include "dump-ingest.validateGc" . -}}
{{- include "dump-ingest.validatePage" . -}}
{{- include "dump-ingest.validateMonitoring" . -}}
{{- include "dump-ingest.validateLabels" (dict "root" . "path" "commonLabels" "labels" .Values.commonLabels) -}}
{{- range $role := list "watcher" "scheduler" "worker" "consolidator" "page" "gc" -}}
{{- include "dump-ingest.validateRole" (dict "root" $ "path" $role "role" (get $.Values $role)) -}}
{{- end -}}
{{- include "dump-ingest.validateResources" (dict "path" "watcher.worker.resources" "resources" .Values.watcher.worker.resources) -}}
{{- include "dump-ingest.validateResources" (dict "path" "tests.resources" "resources" .Values.tests.resources) -}}
{{- include "dump-ingest.validateEnv" (dict "path" "extraEnv" "env" .Values.extraEnv) -}}
{{- include "dump-ingest.validateEnv" (dict "path" "watcher.worker.extraEnv" "env" .Values.watcher.worker.extraEnv) -}}
{{- end -}}

{{- define "dump-ingest.validateCluster" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository: is required: the name of the image that you have built and pushed, such as registry.example.com/dump-ingest; build it with `docker build -f deploy/Dockerfile` (docs/deployment.md, Kubernetes)" -}}
{{- end -}}
{{- $registry := default .Values.image.registry .Values.global.imageRegistry -}}
{{- if and $registry (hasPrefix (printf "%s/" (trimSuffix "/" $registry)) .Values.image.repository) -}}
{{- fail (printf "image.repository: %s begins with the registry, which is also in image.registry or global.imageRegistry; leave it out here" .Values.image.repository) -}}
{{- end -}}
{{- if regexMatch "(:[^/]*|@.*)$" .Values.image.repository -}}
{{- fail (printf "image.repository: %s contains a tag or digest; put it into image.tag or image.digest" .Values.image.repository) -}}
{{- end -}}
{{- $version := include "dump-ingest.kubeVersion" . -}}
{{- if semverCompare "<1.25.0-0" $version -}}
{{- fail (printf "kubeVersionOverride: this chart needs Kubernetes 1.25 or newer, and this is %s; upgrade the cluster" $version) -}}
{{- end -}}
{{- $native := or (include "dump-ingest.hasNearWorkers" .) (include "dump-ingest.inTrainingPod" .) -}}
{{- if and $native .Values.watcher.worker.nativeSidecar (semverCompare "<1.29.0-0" $version) -}}
{{- fail (printf "watcher.worker.nativeSidecar: native sidecars need Kubernetes 1.29 or newer, and this is %s: its pods would never start; upgrade the cluster, or set watcher.worker.nativeSidecar=false" $version) -}}
{{- end -}}
{{- if and .Values.gc.enabled .Values.gc.timeZone (semverCompare "<1.27.0-0" $version) -}}
{{- fail (printf "gc.timeZone: needs Kubernetes 1.27 or newer, and this is %s; leave it empty, and write gc.schedule in the time zone of the cluster" $version) -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.validateConfig" -}}
{{- $v := .Values -}}
{{- if $v.existingConfigMap -}}
{{- if or (gt (len $v.config) 1) $v.config.store -}}
{{- fail "config: must be empty if existingConfigMap names the settings; put them into that ConfigMap, or leave existingConfigMap empty" -}}
{{- end -}}
{{- else if not $v.config.store -}}
{{- fail "config.store: is required: the URL of the store, such as s3://bucket/run.zarr (or set existingConfigMap)" -}}
{{- end -}}
{{- range $name, $instead := dict "scheduler" "scheduler.enabled=false and scheduler.address" "metrics" "watcher.metrics" "consolidator_metrics" "consolidator.metricsPort" "worker_resources" "watcher.nodeLocal" "host" "nothing instead (it is always the name of the node)" "rules" "anomalyRules" "expected_ranks" "expectedRanks" -}}
{{- if hasKey $v.config $name -}}
{{- fail (printf "config.%s: is set by the chart; use %s" $name $instead) -}}
{{- end -}}
{{- end -}}
{{- if and $v.existingConfigMap (include "dump-ingest.hasRules" .) -}}
{{- fail "anomalyRules: cannot be combined with existingConfigMap; put rules.yaml into that ConfigMap, and set rules: /etc/dump-ingest/rules.yaml in its config.yaml" -}}
{{- end -}}
{{- $store := default "" $v.config.store -}}
{{- if regexMatch "\\s" $store -}}
{{- fail (printf "config.store: %q contains a space or a line break; take it out" $store) -}}
{{- end -}}
{{- if regexMatch "^(file|local|memory):" $store -}}
{{- fail (printf "config.store: %s would be inside a container, and be lost with it; write the path of a directory below storage.mountPath, or s3://..." $store) -}}
{{- end -}}
{{- include "dump-ingest.validateFormats" . -}}
{{- if and (hasPrefix "/" $store) (not $v.existingConfigMap) -}}
{{- if not $v.storage.existingClaim -}}
{{- fail (printf "config.store: %s is a directory that no container mounts; name its claim in storage.existingClaim" $store) -}}
{{- else if not (hasPrefix (printf "%s/" (trimSuffix "/" $v.storage.mountPath)) $store) -}}
{{- fail (printf "config.store: %s is not below storage.mountPath, %s" $store $v.storage.mountPath) -}}
{{- end -}}
{{- end -}}
{{- if and $v.storage.caBundle.existingConfigMap $v.storage.caBundle.existingSecret -}}
{{- fail "storage.caBundle: set existingConfigMap or existingSecret, not both" -}}
{{- end -}}
{{- range $path, $url := dict "config.store" (default "" $v.config.store) "config.webhook" (default "" $v.config.webhook) "config.page_url" (default "" $v.config.page_url) "storage.endpointUrl" $v.storage.endpointUrl "worker.autoscaling.keda.serverAddress" $v.worker.autoscaling.keda.serverAddress "scheduler.address" $v.scheduler.address -}}
{{- if regexMatch "^[A-Za-z0-9+.-]+://[^/?#]*@" $url -}}
{{- fail (printf "%s: contains credentials, which everybody could read in the objects of the release; leave them out of the URL (storage.existingSecret has those of the store, webhook.existingSecret the token of the webhook)" $path) -}}
{{- end -}}
{{- end -}}
{{- include "dump-ingest.validateNoSecrets" (dict "path" "config.store_options" "value" (default dict $v.config.store_options)) -}}
{{- end -}}

{{/* Refuses credentials in nested maps, which would end up in a ConfigMap. Takes (dict "path" ... "value" ...). */}}
{{/* Values of settings whose form the schema of the settings does not tell: a process would refuse them at its start. */}}
{{- define "dump-ingest.validateFormats" -}}
{{- $config := .Values.config -}}
{{- range $name, $form := dict "cpus" (list "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$" "0-3,8") "pressure_free" (list "^(100|[0-9]{1,2}(\\.[0-9]+)?)%$|^[0-9]+$|^[0-9]+(\\.[0-9]+)? *[A-Za-z]+$" "10% or 200GB") "mesh" (list "^\\w+=[1-9][0-9]*(, *\\w+=[1-9][0-9]*)*$" "tp=2,dp=4") "rank_map" (list "^[0-9]+=[0-9]+(,[0-9]+=[0-9]+)*$" "0=8,1=9") "layout" (list "\\{(rank|step)\\}" "rank{rank}/step{step}/{module}.{io}.{slot}.pt") -}}
{{- $given := get $config $name -}}
{{- if and $given (not (kindIs "map" $given)) (not (regexMatch (first $form) $given)) -}}
{{- fail (printf "config.%s: %v is not of the right form; write one such as %s" $name $given (last $form)) -}}
{{- end -}}
{{- end -}}
{{- with $config.cpus -}}
{{- range splitList "," . -}}
{{- $ends := splitList "-" . -}}
{{- if gt (int (first $ends)) (int (last $ends)) -}}
{{- fail (printf "config.cpus: %s ends before it begins; write the lower number first" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $config.rank_map (kindIs "string" $config.rank_map) -}}
{{- $devices := list -}}
{{- range splitList "," $config.rank_map -}}{{- $devices = append $devices (splitList "=" . | first) -}}{{- end -}}
{{- if ne (len $devices) (len (uniq $devices)) -}}
{{- fail (printf "config.rank_map: %s gives two ranks to one device; leave one of them out" $config.rank_map) -}}
{{- end -}}
{{- end -}}
{{- if kindIs "slice" $config.continues -}}
{{- range $place, $directory := $config.continues -}}
{{- if not (hasPrefix "/" $directory) -}}
{{- fail (printf "config.continues[%d]: %s is not an absolute path; write it as `dump-ingest ls --json` shows it in `root`" $place $directory) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.validateNoSecrets" -}}
{{- if kindIs "map" .value -}}
{{- range $key, $value := .value -}}
{{- $path := printf "%s.%s" $.path $key -}}
{{- if and (regexMatch "(?i)(secret|passw|token|credential|account_key|access_key|connection_string|^key$|^sas)" $key) (not (kindIs "bool" $value)) -}}
{{- fail (printf "%s: is a credential, which everybody could read in a ConfigMap; put it into a secret, and name that in storage.existingSecret or extraEnv" $path) -}}
{{- end -}}
{{- include "dump-ingest.validateNoSecrets" (dict "path" $path "value" $value) -}}
{{- end -}}
{{- else if kindIs "string" .value -}}
{{- if regexMatch "^[A-Za-z0-9+.-]+://[^/?#]*@" .value -}}
{{- fail (printf "%s: contains credentials, which everybody could read in a ConfigMap; leave them out of the URL, and name a secret in storage.existingSecret" .path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Conditions in rules: brackets, quotes, and names of columns. The schema checks all other fields. */}}
{{- define "dump-ingest.validateRules" -}}
{{- $known := include "dump-ingest.known" . | fromYaml -}}
{{- $columns := $known.columns -}}
{{- $words := list "and" "or" "not" "in" "abs" "nan" "inf" "true" "false" -}}
{{- range $place, $rule := .Values.anomalyRules.rules -}}
{{- $path := printf "anomalyRules.rules[%d].where" $place -}}
{{- with get $rule "where" -}}
{{- $text := include "dump-ingest.withoutTexts" . -}}
{{- with include "dump-ingest.bracketProblem" $text -}}
{{- fail (printf "%s (rule %s): %s; `dump-ingest rules validate` checks it" $path $rule.name .) -}}
{{- end -}}
{{- range regexFindAll "[A-Za-z_][A-Za-z_0-9]*|[0-9][0-9A-Za-z_.]*" $text -1 -}}
{{- if and (regexMatch "^[A-Za-z_]" .) (not (has . (concat $columns $words))) (not (regexMatch $known.columnsOfSketches .)) -}}
{{- fail (printf "%s (rule %s): there is no column %s; there are %s" $path $rule.name . (join ", " $columns)) -}}
{{- end -}}
{{- end -}}
{{- if regexMatch "(<|>|=|!=|<=|>=|[-+*/]|\\b(and|or|not|in))\\s*($|\\))|(>|<)\\s*(>|<)|[^<>=!]=[^=]|&&|\\|\\|" $text -}}
{{- fail (printf "%s (rule %s): %q is not a condition; write one such as nan_count > 0 and op_type == \"Log\"" $path $rule.name .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.validateDump" -}}
{{- $v := .Values -}}
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
{{- include "dump-ingest.validateMount" (dict "path" "dump.mountPath" "mount" $v.dump.mountPath) -}}
{{- if $v.storage.existingClaim -}}
{{- include "dump-ingest.validateMount" (dict "path" "storage.mountPath" "mount" $v.storage.mountPath) -}}
{{- $one := printf "%s/" (clean $v.dump.mountPath) -}}
{{- $other := printf "%s/" (clean $v.storage.mountPath) -}}
{{- if or (hasPrefix $one $other) (hasPrefix $other $one) -}}
{{- fail (printf "storage.mountPath: %s and dump.mountPath, %s, must not contain each other; choose separate directories" $v.storage.mountPath $v.dump.mountPath) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
Refuses to mount something over what the containers need. Below `/tmp` and below directories of the system, mounts are
fine. Takes (dict "path" ... "mount" ...).
*/}}
{{- define "dump-ingest.validateMount" -}}
{{- $mount := clean .mount -}}
{{- $own := list "/tmp" "/etc/dump-ingest" "/etc/dask" "/etc/dask-tls" "/etc/dump-ingest-page" "/etc/store-ca" "/opt/dump-ingest" -}}
{{- range concat $own (list "/bin" "/dev" "/etc" "/lib" "/lib64" "/proc" "/sbin" "/sys" "/usr" "/usr/bin" "/usr/lib" "/usr/local") -}}
{{- if or (eq $mount .) (eq $mount "/") (hasPrefix (printf "%s/" $mount) .) -}}
{{- fail (printf "%s: %s would hide %s, which the containers need; choose another directory, such as /data" $.path $.mount .) -}}
{{- end -}}
{{- end -}}
{{- range concat (without $own "/tmp") (list "/proc" "/sys") -}}
{{- if hasPrefix (printf "%s/" .) $mount -}}
{{- fail (printf "%s: %s is in %s, which is read-only; choose another directory, such as /data" $.path $.mount .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.validateScheduler" -}}
{{- $v := .Values -}}
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
{{- end -}}

{{- define "dump-ingest.validatePods" -}}
{{- $v := .Values -}}
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
{{- fail (printf "watcher.worker.firstPort: %d workers need ports up to %d; choose a lower one" (int $v.watcher.worker.count) (int $lastPort)) -}}
{{- end -}}
{{- if and (ge (int $v.watcher.metrics.port) (int $v.watcher.worker.firstPort)) (le (int $v.watcher.metrics.port) (int $lastPort)) (include "dump-ingest.hasNearWorkers" .) -}}
{{- fail (printf "watcher.metrics.port: %d is a port of the workers in the watcher's pod (watcher.worker.firstPort); choose another" (int $v.watcher.metrics.port)) -}}
{{- end -}}
{{- if ne (len (uniq (list (int $v.worker.ports.worker) (int $v.worker.ports.nanny) (int $v.worker.ports.http)))) 3 -}}
{{- fail "worker.ports: worker, nanny and http must differ; choose three ports" -}}
{{- end -}}
{{- if eq (int $v.scheduler.port) (int $v.scheduler.httpPort) -}}
{{- fail "scheduler.httpPort: must differ from scheduler.port; choose another" -}}
{{- end -}}
{{- $drain := include "dump-ingest.drainSeconds" . | int -}}
{{- $grace := $v.watcher.terminationGracePeriodSeconds -}}
{{- if and (not (kindIs "invalid" $grace)) (le (int $grace) $drain) -}}
{{- fail (printf "watcher.terminationGracePeriodSeconds: %d would kill the watcher before it has finished its current work; it must be more than config.drain_s, %d" (int $grace) $drain) -}}
{{- end -}}
{{- end -}}

{{/* In the mode `sidecar`, the pod belongs to the training job: what the chart would say of it would have no effect. */}}
{{- define "dump-ingest.validateSidecar" -}}
{{- if eq .Values.watcher.mode "sidecar" -}}
{{- range list "nodeSelector" "affinity" "topologySpreadConstraints" "priorityClassName" "hostNetwork" "dnsPolicy" "dnsConfig" "hostAliases" "initContainers" "extraContainers" "annotations" -}}
{{- if get $.Values.watcher . -}}
{{- fail (printf "watcher.%s: has no effect in the mode sidecar; set it in the pod template of the training job" .) -}}
{{- end -}}
{{- end -}}
{{- else if .Values.watcher.sidecar.dumpVolume -}}
{{- fail "watcher.sidecar.dumpVolume: is only for watcher.mode=sidecar; use dump.hostPath, dump.existingClaim or dump.volume" -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.validateScaling" -}}
{{- $v := .Values -}}
{{- with $v.worker.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail "worker.autoscaling.minReplicas: is greater than maxReplicas; lower it, or raise worker.autoscaling.maxReplicas" -}}
{{- end -}}
{{- if and .enabled (lt (int .minReplicas) 1) -}}
{{- fail "worker.autoscaling.minReplicas: must be at least 1: watchers send no task while there is no worker, so the scheduler would never ask for the first one" -}}
{{- end -}}
{{- if and .enabled (eq .kind "keda") (not .keda.serverAddress) -}}
{{- fail "worker.autoscaling.keda.serverAddress: is required if worker.autoscaling.kind is keda: the URL of Prometheus" -}}
{{- end -}}
{{- end -}}
{{- if and $v.verticalPodAutoscaler.enabled $v.worker.autoscaling.enabled (eq $v.worker.autoscaling.kind "hpa") (not $v.worker.autoscaling.metrics) (has "cpu" $v.verticalPodAutoscaler.controlledResources) -}}
{{- fail "verticalPodAutoscaler.controlledResources: must not contain cpu if worker.autoscaling scales by CPU, because each would undo what the other does; use [memory]" -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.validateGc" -}}
{{- $schedule := .Values.gc.schedule -}}
{{- $minute := "[0-5]?[0-9]" -}}
{{- $hour := "([01]?[0-9]|2[0-3])" -}}
{{- $day := "(0?[1-9]|[12][0-9]|3[01])" -}}
{{- $month := "(0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)" -}}
{{- $weekday := "([0-6]|SUN|MON|TUE|WED|THU|FRI|SAT)" -}}
{{- $fields := list -}}
{{- range list $minute $hour $day $month $weekday -}}
{{- $item := printf "(\\*|\\?|%s(-%s)?)(/0*[1-9][0-9]*)?" . . -}}
{{- $fields = append $fields (printf "%s(,%s)*" $item $item) -}}
{{- end -}}
{{- $cron := printf "(?i)^(%s|@(yearly|annually|monthly|weekly|daily|midnight|hourly))$" (join " +" $fields) -}}
{{- if not (regexMatch $cron $schedule) -}}
{{- $zone := ternary " (the time zone belongs into gc.timeZone)" "" (contains "TZ=" $schedule) -}}
{{- fail (printf "gc.schedule: %q is not a cron line%s; write five fields (minute, hour, day, month, weekday), such as \"17 3 * * *\"" $schedule $zone) -}}
{{- end -}}
{{- if regexMatch "(?i)^\\S+ +\\S+ +(0*3[01] +(0*2|FEB)|31 +(0*[469]|11|APR|JUN|SEP|NOV)) +[*?]$" $schedule -}}
{{- fail (printf "gc.schedule: %q names a day that its month does not have, so gc would never run; choose another day" $schedule) -}}
{{- end -}}
{{- end -}}

{{/* Nobody shall see tensors by accident, nor by writing a header. */}}
{{- define "dump-ingest.validatePage" -}}
{{- $v := .Values.page -}}
{{- range $name := list "ingress" "httpRoute" -}}
{{- $path := printf "page.%s.enabled" $name -}}
{{- if (get $v $name).enabled -}}
{{- if not $v.enabled -}}
{{- fail (printf "%s: leads to a page that does not run; set page.enabled=true" $path) -}}
{{- else if not (or $v.existingSecret $v.trustHeader) -}}
{{- fail (printf "%s: would show every tensor to whoever reaches it; name a secret with a token in page.existingSecret, or the header of a proxy in page.trustHeader" $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if $v.enabled -}}
{{- if not (or $v.existingSecret $v.trustHeader $v.allowAnyone) -}}
{{- fail "page.enabled: every pod of the cluster could read every tensor; name a secret with a token in page.existingSecret, or the header of a proxy in page.trustHeader, or set page.allowAnyone=true" -}}
{{- end -}}
{{- if and $v.allowAnyone (or $v.existingSecret $v.trustHeader) -}}
{{- fail "page.allowAnyone: contradicts page.existingSecret and page.trustHeader, which ask for a proof; set one of them, or page.allowAnyone" -}}
{{- end -}}
{{- if and (ne $v.service.type "ClusterIP") (not $v.existingSecret) -}}
{{- fail (printf "page.service.type: %s opens the page to others, who need no token; name a secret with a token in page.existingSecret, or use ClusterIP" $v.service.type) -}}
{{- end -}}
{{- if and $v.trustHeader (not $v.existingSecret) -}}
{{- if not $v.from -}}
{{- fail (printf "page.from: is required with page.trustHeader, because every pod that reaches the page could write %s itself; name the pods of the proxy, such as [{podSelector: {matchLabels: {app: oauth2-proxy}}}]" $v.trustHeader) -}}
{{- else if or (not .Values.networkPolicy.enabled) $v.hostNetwork -}}
{{- fail (printf "page.trustHeader: every pod that reaches the page could write %s itself, because %s; name a secret with a token in page.existingSecret as well, or change that" $v.trustHeader (ternary "network policies do not apply with page.hostNetwork" "networkPolicy.enabled is false" $v.hostNetwork)) -}}
{{- end -}}
{{- end -}}
{{- if and $v.from (not .Values.networkPolicy.enabled) -}}
{{- fail "page.from: has no effect while networkPolicy.enabled is false; set that to true, or leave page.from empty" -}}
{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}
{{- fail "page.httpRoute.parentRefs: is required: the gateways that the route belongs to, such as [{name: public, namespace: gateways}]" -}}
{{- end -}}
{{- with .Values.config.page_url -}}
{{- $path := trimSuffix "/" (urlParse .).path -}}
{{- if ne $path $v.basePath -}}
{{- fail (printf "page.basePath: %q is not the path of config.page_url, %s, so links of messages would lead nowhere; set page.basePath=%s" $v.basePath . $path) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.validateMonitoring" -}}
{{- range $label, $value := .Values.monitoring.prometheusRule.ruleLabels -}}
{{- if has $label (list "alertname" "namespace" "run" "severity") -}}
{{- fail (printf "monitoring.prometheusRule.ruleLabels.%s: would be the same for all alerts, and routing and inhibitions tell them apart by it; choose another label, or change single alerts in monitoring.prometheusRule.overrides" $label) -}}
{{- end -}}
{{- if not (regexMatch "^[a-zA-Z_][a-zA-Z0-9_]*$" $label) -}}
{{- fail (printf "monitoring.prometheusRule.ruleLabels.%s: is not a name that Prometheus permits for a label; use letters, digits and _" $label) -}}
{{- end -}}
{{- end -}}
{{- range $name := list "podMonitor" "serviceMonitor" -}}
{{- $values := get $.Values.monitoring $name -}}
{{- $interval := include "dump-ingest.milliseconds" $values.interval | int64 -}}
{{- if lt $interval 1000 -}}
{{- fail (printf "monitoring.%s.interval: %s is less than a second; write at least 1s" $name $values.interval) -}}
{{- end -}}
{{- if and $values.enabled $.Values.monitoring.prometheusRule.enabled (gt $interval (int64 120000)) -}}
{{- fail (printf "monitoring.%s.interval: %s is too long for the alerts, which look at times as short as five minutes; write at most 2m" $name $values.interval) -}}
{{- end -}}
{{- if gt (include "dump-ingest.milliseconds" $values.scrapeTimeout | int64) $interval -}}
{{- fail (printf "monitoring.%s.scrapeTimeout: %s is longer than monitoring.%s.interval, %s: prometheus-operator would silently ignore the monitor; lower it, or raise the interval" $name $values.scrapeTimeout $name $values.interval) -}}
{{- end -}}
{{- if and (or $values.tlsConfig) (ne $values.scheme "https") -}}
{{- fail (printf "monitoring.%s.tlsConfig: has no effect while monitoring.%s.scheme is http; set it to https" $name $name) -}}
{{- end -}}
{{- range concat $values.relabelings $values.metricRelabelings -}}
{{- if and (has (get . "targetLabel") (list "job" "run" "namespace")) $.Values.monitoring.prometheusRule.enabled -}}
{{- fail (printf "monitoring.%s.relabelings: %s must stay, because the alerts select by it; write another targetLabel" $name .targetLabel) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Labels must not replace those that select pods, or that Helm itself needs. Takes (dict "root" $ "path" ... "labels" map). */}}
{{- define "dump-ingest.validateLabels" -}}
{{- $fullname := include "dump-ingest.fullname" .root -}}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/managed-by" "app.kubernetes.io/version" "helm.sh/chart" -}}
{{- range $key, $value := .labels -}}
{{- $where := printf "%s.%s" $.path $key -}}
{{- if has $key (append $own (printf "%s-client" $fullname)) -}}
{{- fail (printf "%s: is a label that the chart sets itself and selects pods by; choose another name, or use nameOverride" $where) -}}
{{- end -}}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$" $key) -}}
{{- fail (printf "%s: is not a name that Kubernetes permits for a label; use letters, digits, -, _ and ., at most 63" $where) -}}
{{- end -}}
{{- if not (regexMatch "^([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?$" $value) -}}
{{- fail (printf "%s: %q is not a value that Kubernetes permits for a label; use letters, digits, -, _ and ., at most 63, or put it into annotations" $where $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What every role has. Takes (dict "root" $ "path" "watcher" "role" map). */}}
{{- define "dump-ingest.validateRole" -}}
{{- include "dump-ingest.validateLabels" (dict "root" .root "path" (printf "%s.podLabels" .path) "labels" .role.podLabels) -}}
{{- include "dump-ingest.validateResources" (dict "path" (printf "%s.resources" .path) "resources" .role.resources) -}}
{{- include "dump-ingest.validateEnv" (dict "path" (printf "%s.extraEnv" .path) "env" .role.extraEnv) -}}
{{- include "dump-ingest.validateArguments" . -}}
{{- $volumes := list -}}
{{- range $place, $volume := .role.extraVolumes -}}
{{- if hasPrefix "dump-ingest-" $volume.name -}}
{{- fail (printf "%s.extraVolumes[%d].name: %s begins like the volumes of the chart; choose a name that does not begin with dump-ingest-" $.path $place $volume.name) -}}
{{- end -}}
{{- if has $volume.name $volumes -}}
{{- fail (printf "%s.extraVolumes[%d].name: there is a volume %s already; choose another name" $.path $place $volume.name) -}}
{{- end -}}
{{- $volumes = append $volumes $volume.name -}}
{{- end -}}
{{- $names := list .path -}}
{{- range $_, $kind := list "initContainers" "extraContainers" -}}
{{- range $place, $container := default list (get $.role $kind) -}}
{{- if or (has $container.name $names) (regexMatch "^(dump-ingest-.*|worker(-[0-9]+)?)$" $container.name) -}}
{{- fail (printf "%s.%s[%d].name: there is a container %s already; choose another name" $.path $kind $place $container.name) -}}
{{- end -}}
{{- $names = append $names $container.name -}}
{{- end -}}
{{- end -}}
{{- include "dump-ingest.validateStrategy" . -}}
{{- $mounts := list (clean .root.Values.dump.mountPath) -}}
{{- if .root.Values.storage.existingClaim -}}{{- $mounts = append $mounts (clean .root.Values.storage.mountPath) -}}{{- end -}}
{{- range $place, $mount := .role.extraVolumeMounts -}}
{{- $where := printf "%s.extraVolumeMounts[%d]" $.path $place -}}
{{- include "dump-ingest.validateMount" (dict "path" (printf "%s.mountPath" $where) "mount" $mount.mountPath) -}}
{{- if has (clean $mount.mountPath) $mounts -}}
{{- fail (printf "%s.mountPath: something is mounted at %s already; choose another directory" $where $mount.mountPath) -}}
{{- end -}}
{{- $mounts = append $mounts (clean $mount.mountPath) -}}
{{- if not (or (has $mount.name $volumes) (hasPrefix "dump-ingest-" $mount.name)) -}}
{{- fail (printf "%s.name: there is no volume %s; add it to %s.extraVolumes" $where $mount.name $.path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* How pods are replaced. Takes (dict "root" $ "path" "watcher" "role" map). */}}
{{- define "dump-ingest.validateStrategy" -}}
{{- with .role.updateStrategy -}}
{{- $isSet := and (eq $.path "watcher") (eq $.root.Values.watcher.mode "daemonset") -}}
{{- $types := ternary (list "RollingUpdate" "OnDelete") (list "RollingUpdate" "Recreate") $isSet -}}
{{- if and .type (not (has .type $types)) -}}
{{- fail (printf "%s.updateStrategy.type: a %s knows no %s; write one of %s" $.path (ternary "DaemonSet" "Deployment" $isSet) .type (join ", " $types)) -}}
{{- end -}}
{{- $none := list "0" "0%" -}}
{{- $rolling := default dict .rollingUpdate -}}
{{- if and (hasKey $rolling "maxUnavailable") (has (toString $rolling.maxUnavailable) $none) (or $isSet (hasKey $rolling "maxSurge")) (has (toString (default 0 $rolling.maxSurge)) $none) -}}
{{- fail (printf "%s.updateStrategy.rollingUpdate.maxUnavailable: no pod could ever be replaced; write at least 1, or set maxSurge" $.path) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Options of our commands: known, and not set by the chart already. Takes (dict "root" $ "path" "gc" "role" map). */}}
{{- define "dump-ingest.validateArguments" -}}
{{- $command := get (dict "watcher" "watch" "consolidator" "consolidate" "page" "serve" "gc" "gc") .path -}}
{{- $known := include "dump-ingest.known" .root | fromYaml -}}
{{- $dask := dict "worker" (dict "--nthreads" "worker.threads" "--memory-limit" "worker.resources.limits.memory" "--worker-port" "worker.ports.worker" "--nanny-port" "worker.ports.nanny" "--dashboard-address" "worker.ports.http" "--protocol" "dask.tls.enabled" "--lifetime" "worker.lifetime" "--nworkers" "worker.replicas" "--resources" "watcher.nodeLocal") "scheduler" (dict "--port" "scheduler.port" "--dashboard-address" "scheduler.httpPort" "--protocol" "dask.tls.enabled") -}}
{{- $setByChart := get (merge $dask $known.setByChart) (default .path $command) -}}
{{- $options := default dict (get $known.options (default "" $command)) -}}
{{- $isValue := false -}}
{{- range $place, $argument := .role.extraArgs -}}
{{- $where := printf "%s.extraArgs[%d]" $.path $place -}}
{{- $option := first (splitList "=" $argument) -}}
{{- if $isValue -}}
{{- $isValue = false -}}
{{- else if hasKey $setByChart $option -}}
{{- fail (printf "%s: %s is set by the chart; use %s" $where $option (get $setByChart $option)) -}}
{{- else if $command -}}
{{- if not (hasKey $options $option) -}}
{{- fail (printf "%s: %q is not an option of dump-ingest %s; there are %s" $where $argument $command (without (keys $options | sortAlpha) (keys $setByChart | sortAlpha | join "\n" | splitList "\n") | join ", ")) -}}
{{- end -}}
{{- $takesValue := get $options $option -}}
{{- if and (contains "=" $argument) (not $takesValue) -}}
{{- fail (printf "%s: %s takes no value; write %s" $where $argument $option) -}}
{{- end -}}
{{- $isValue = and $takesValue (not (contains "=" $argument)) -}}
{{- end -}}
{{- end -}}
{{- if $isValue -}}
{{- fail (printf "%s.extraArgs: %s needs a value; write %s=VALUE" .path (last .role.extraArgs) (last .role.extraArgs)) -}}
{{- end -}}
{{- end -}}

{{/* Takes (dict "path" ... "env" list). */}}
{{- define "dump-ingest.validateEnv" -}}
{{- $own := dict "DUMP_INGEST_CONFIG" "config" "DUMP_INGEST_HOST" "nothing (it is always the name of the node)" "DUMP_INGEST_METRICS" "watcher.metrics" "DUMP_INGEST_CONSOLIDATOR_METRICS" "consolidator.metricsPort" "DUMP_INGEST_RULES" "anomalyRules" "DUMP_INGEST_SCHEDULER" "scheduler.address" "DUMP_INGEST_STORE" "config.store" "DUMP_INGEST_WORKER_RESOURCES" "watcher.nodeLocal" "DUMP_INGEST_EXPECTED_RANKS" "expectedRanks" "DUMP_INGEST_PAGE_URL" "config.page_url" "HOME" "nothing (only /tmp can be written to)" "NODE_NAME" "nothing" "POD_NAME" "nothing" -}}
{{- $names := list -}}
{{- range $place, $one := .env -}}
{{- $where := printf "%s[%d] (%s)" $.path $place $one.name -}}
{{- if has $one.name $names -}}
{{- fail (printf "%s: is set twice, and the last one would win; leave one of them out" $where) -}}
{{- end -}}
{{- $names = append $names $one.name -}}
{{- if hasKey $own $one.name -}}
{{- fail (printf "%s: is set by the chart; use %s" $where (get $own $one.name)) -}}
{{- end -}}
{{- if and (get $one "value") (regexMatch "(SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL|ACCESS_KEY|ACCOUNT_KEY)" (upper $one.name)) (not (regexMatch "(_FILE|_PATH|_URI|_URL|_DIR)$" (upper $one.name))) -}}
{{- fail (printf "%s: is a credential, which everybody could read in the pods; put it into a secret, and write valueFrom.secretKeyRef" $where) -}}
{{- end -}}
{{- if regexMatch "^[A-Za-z0-9+.-]+://[^/?#]*@" (toString (get $one "value")) -}}
{{- fail (printf "%s: contains credentials in its URL, which everybody could read in the pods; put it into a secret, and write valueFrom.secretKeyRef" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Quantities that Kubernetes accepts and that are meant. Takes (dict "path" ... "resources" map). */}}
{{- define "dump-ingest.validateResources" -}}
{{- $amounts := dict -}}
{{- range $part := list "requests" "limits" -}}
{{- range $name, $quantity := default dict (get (default dict $.resources) $part) -}}
{{- $where := printf "%s.%s.%s" $.path $part $name -}}
{{- $number := include "dump-ingest.quantity" $quantity -}}
{{- if not $number -}}
{{- fail (printf "%s: %q is not a quantity of Kubernetes; write %s" $where (toString $quantity) (ternary "500m or 2" "2Gi or 512Mi" (eq $name "cpu"))) -}}
{{- end -}}
{{- if and (has $name (list "memory" "ephemeral-storage")) (lt (float64 $number) 1048576.0) -}}
{{- fail (printf "%s: %v is only %v bytes; write a unit, such as 2Gi or 512Mi (m stands for thousandths)" $where $quantity $number) -}}
{{- end -}}
{{- $request := get $amounts $name -}}
{{- if and $request (gt (float64 $request) (float64 $number)) -}}
{{- fail (printf "%s: %v is less than %s.requests.%s, %v; raise the limit, or lower the request" $where $quantity $.path $name (get (get $.resources "requests") $name)) -}}
{{- end -}}
{{- $_ := set $amounts $name $number -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes as a number; "" if it is not one. */}}
{{- define "dump-ingest.quantity" -}}
{{- $text := toString . -}}
{{- if regexMatch "^([0-9]+(\\.[0-9]*)?|\\.[0-9]+)([eE][-+]?[0-9]+)$" $text -}}
{{- float64 $text -}}
{{- else if regexMatch "^([0-9]+(\\.[0-9]*)?|\\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?$" $text -}}
{{- $factors := dict "" 1.0 "n" 1e-9 "u" 1e-6 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- mulf (float64 (regexFind "^[0-9.]+" $text)) (get $factors (regexFind "[A-Za-z]*$" $text)) -}}
{{- end -}}
{{- end -}}

{{/* A duration of Prometheus, such as 1m30s, in milliseconds. */}}
{{- define "dump-ingest.milliseconds" -}}
{{- $factors := dict "ms" 1 "s" 1000 "m" 60000 "h" 3600000 "d" 86400000 "w" 604800000 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+(ms|[smhdw])" . -1 -}}
{{- $sum = add $sum (mul (regexFind "^[0-9]+" . | int64) (get $factors (regexFind "[a-z]+$" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* An expression with each text in quotes replaced by `""`, and without comments. */}}
{{- define "dump-ingest.withoutTexts" -}}
{{- $text := regexReplaceAll "\"(\\\\.|[^\"\\\\\n])*\"|'(\\\\.|[^'\\\\\n])*'|`[^`]*`" . "0" -}}
{{- regexReplaceAll "#[^\n]*" $text "" -}}
{{- end -}}

{{/* What is wrong with quotes and brackets of such an expression; "" if nothing is. */}}
{{- define "dump-ingest.bracketProblem" -}}
{{- $brackets := regexReplaceAll "[^][(){}]" . "" -}}
{{- range until (len $brackets) -}}
{{- $brackets = $brackets | replace "()" "" | replace "[]" "" | replace "{}" "" -}}
{{- end -}}
{{- if regexMatch "[\"'`]" . -}}
a quotation mark has no partner
{{- else if $brackets -}}
the brackets {{ $brackets }} have no partner
{{- end -}}
{{- end -}}

{{/*
What is wrong with PromQL, as far as it can be seen without a parser; "" if nothing is. It does not see unknown
functions, metrics that do not exist, missing operators between two operands, and types that do not fit.
*/}}
{{- define "dump-ingest.promqlProblem" -}}
{{- $text := include "dump-ingest.withoutTexts" . -}}
{{- $problem := include "dump-ingest.bracketProblem" $text -}}
{{- $outside := regexReplaceAll "\\{[^{}]*\\}" $text "0" | trim -}}
{{- $signs := regexReplaceAll "==|!=|>=|<=" $outside ">" -}}
{{- if $problem -}}
{{- $problem -}}
{{- else if not $outside -}}
it is empty
{{- else if contains "=" $signs -}}
a single = does not compare; write ==
{{- else if regexMatch "[&|;$?]|!($|[^=])" $outside -}}
{{ regexFind "[&|;$?!]" $outside }} is not part of PromQL; write and, or, unless
{{- else if regexMatch "(?i)(^|\\()\\s*([*/%^>]|<|(and|or|unless)\\b)" $signs -}}
an operator has nothing before it
{{- else if regexMatch "(?i)([-+*/%^><]|\\b(and|or|unless|bool|offset|by|on))\\s*($|\\))" $signs -}}
an operator has nothing after it
{{- else if regexMatch "[*/%^><]\\s*[*/%^><]" $signs -}}
two operators follow each other
{{- end -}}
{{- end -}}
