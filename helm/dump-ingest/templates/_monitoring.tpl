{{/* Metadata of a monitoring object. Takes (dict "root" $ "name" ... "component" ... "values" ...). */}}
{{- define "dump-ingest.monitoringMetadata" -}}
name: {{ .name }}
namespace: {{ default .root.Release.Namespace .values.namespace }}
labels:
  {{- include "dump-ingest.merged" (list (include "dump-ingest.labels" . | fromYaml) .values.labels) | nindent 2 }}
{{- end -}}

{{/*
How to scrape a port. The alerts depend on these job names, which are those of deploy/prometheus.
Takes (dict "root" $ "port" ... "component" ... "values" ...).
*/}}
{{- define "dump-ingest.endpoint" -}}
port: {{ .port }}
path: /metrics
interval: {{ .values.interval }}
scrapeTimeout: {{ .values.scrapeTimeout }}
relabelings:
  - targetLabel: job
    replacement: {{ .root.Release.Name }}/dump-ingest-{{ .component }}
  {{- with .values.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
