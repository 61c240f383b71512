{{/* Dask configuration of all roles. Tasks keep no results, and may lose their worker. */}}
{{- define "dump-ingest.daskConfig" -}}
distributed:
  comm:
    retry: {count: 3}
    {{- if include "dump-ingest.usesTls" . }}
    require-encryption: true
    tls:
      ca-file: /etc/dask-tls/ca.crt
      {{- range list "scheduler" "worker" "client" }}
      {{ . }}: {cert: /etc/dask-tls/tls.crt, key: /etc/dask-tls/tls.key}
      {{- end }}
    {{- end }}
  scheduler:
    allowed-failures: 3
    no-workers-timeout: 60s
    # Dask's default routes, without the proxy that reaches any port of any worker.
    http:
      routes:
        - distributed.http.scheduler.prometheus
        - distributed.http.scheduler.info
        - distributed.http.scheduler.json
        - distributed.http.health
        - distributed.http.statics
  worker:
    memory: {target: false, spill: false}
  nanny:
    pre-spawn-environ:
      # Dask's default returns memory at once, so that every encoded chunk would need new pages.
      MALLOC_TRIM_THRESHOLD_: 16777216
      MALLOC_MMAP_THRESHOLD_: 4194304
{{- end -}}

{{- define "dump-ingest.tlsSecretName" -}}
{{- if eq .Values.dask.tls.source "existingSecret" -}}
{{- .Values.dask.tls.existingSecret -}}
{{- else -}}
{{- printf "%s-dask-tls" (include "dump-ingest.fullname" .) -}}
{{- end -}}
{{- end -}}

{{- define "dump-ingest.generatesTls" -}}
{{- if and (include "dump-ingest.usesTls" .) (eq .Values.dask.tls.source "generate") -}}true{{- end -}}
{{- end -}}

{{/*
Data of the generated secret: the one in the cluster if it exists, otherwise a new CA and certificate. It is made once
for each rendering, because secret and checksums must agree. The key of the CA is discarded: nobody can sign with it later.
*/}}
{{- define "dump-ingest.generatedTls" -}}
{{- if not (hasKey .Values "generatedTls_") -}}
{{- $found := lookup "v1" "Secret" .Release.Namespace (include "dump-ingest.tlsSecretName" .) -}}
{{- $data := default dict (get (default dict $found) "data") -}}
{{- if not (and (hasKey $data "ca.crt") (hasKey $data "tls.crt") (hasKey $data "tls.key")) -}}
{{- $days := int .Values.dask.tls.validityDays -}}
{{- $name := printf "%s-scheduler" (include "dump-ingest.fullname" .) -}}
{{- $ca := genCA "dump-ingest-dask-ca" $days -}}
{{- $names := list $name (printf "%s.%s.svc" $name .Release.Namespace) -}}
{{- $cert := genSignedCert "dump-ingest-dask" nil $names $days $ca -}}
{{- $data = dict "ca.crt" (b64enc $ca.Cert) "tls.crt" (b64enc $cert.Cert) "tls.key" (b64enc $cert.Key) -}}
{{- end -}}
{{- $_ := set .Values "generatedTls_" (pick $data "ca.crt" "tls.crt" "tls.key") -}}
{{- end -}}
{{- toYaml .Values.generatedTls_ -}}
{{- end -}}

{{/* Arguments of `dask worker`. Takes (dict "root" $ "threads" 1 "ports" (list worker nanny http)). */}}
{{- define "dump-ingest.workerArgs" -}}
- worker
- {{ include "dump-ingest.schedulerAddress" .root | quote }}
- --nworkers=1
- --nthreads={{ .threads }}
# Of the memory limit of the container, which Dask reads from its cgroup. Dask ends a worker at 95 % of this: before the
# kernel ends the whole container, in which the nanny needs memory, too.
- --memory-limit=0.85
- --worker-port={{ index .ports 0 }}
- --nanny-port={{ index .ports 1 }}
- --dashboard-address=:{{ index .ports 2 }}
- --local-directory=/tmp
# Its metrics then exist before the first task.
- --preload=workers.plugin
{{- if include "dump-ingest.usesTls" .root }}
- --protocol=tls
{{- end }}
{{- end -}}
