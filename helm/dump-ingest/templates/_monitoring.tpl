{{/* Metadata of a monitoring object. Takes (dict "root" $ "name" ... "component" ... "values" ...). */}}
{{- define "dump-ingest.monitoringMetadata" -}}
name: {{ .name | quote }}
namespace: {{ default .root.Release.Namespace .values.namespace | quote }}
labels:
  {{- include "dump-ingest.merged" (list (include "dump-ingest.labels" . | fromYaml) .values.labels) | nindent 2 }}
{{- end -}}

{{/*
How to scrape a port. The alerts depend on these job names, which are those of deploy/prometheus, and on `run`, which
keeps releases apart. Takes (dict "root" $ "port" ... "component" ... "values" ...).
*/}}
{{- define "dump-ingest.endpoint" -}}
port: {{ default .port (get .values.ports .port) }}
path: /metrics
interval: {{ .values.interval }}
scrapeTimeout: {{ .values.scrapeTimeout }}
{{- if ne .values.scheme "http" }}
scheme: {{ .values.scheme }}
{{- end }}
{{- range $key := list "tlsConfig" "authorization" "basicAuth" }}
{{- with get $.values $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
relabelings:
  - targetLabel: job
    replacement: {{ .root.Release.Name }}/dump-ingest-{{ .component }}
  - targetLabel: run
    replacement: {{ .root.Release.Name | quote }}
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: node
  {{- with .values.relabelings }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What monitors say of all their targets. Takes the values of the monitor. */}}
{{- define "dump-ingest.targets" -}}
{{- with .podTargetLabels }}
podTargetLabels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .attachMetadata }}
attachMetadata:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .sampleLimit }}
sampleLimit: {{ . }}
{{- end }}
{{- end -}}
