{{/*
The user that a pod runs as. Pods that read the dump, or write a store in a directory, run as the user of the dump.
`account` is the service account, if it is not the one of the release. Takes (dict "root" $ "role" .Values.watcher "dump" bool "store" bool
"deletes" bool).
*/}}
{{- define "dump-ingest.identity" -}}
{{- $dump := dict -}}
{{- if or .dump (and .store .root.Values.storage.existingClaim) -}}
{{- $values := .root.Values.dump -}}
{{- if not (kindIs "invalid" $values.runAsUser) -}}
{{- $_ := set $dump "runAsUser" (int64 $values.runAsUser) -}}
{{- if eq (int64 $values.runAsUser) 0 -}}{{- $_ := set $dump "runAsNonRoot" false -}}{{- end -}}
{{- end -}}
{{- if not (kindIs "invalid" $values.runAsGroup) -}}
{{- $_ := set $dump "runAsGroup" (int64 $values.runAsGroup) -}}
{{- end -}}
{{- with $values.supplementalGroups -}}{{- $_ := set $dump "supplementalGroups" . -}}{{- end -}}
{{- end -}}
{{- if .store -}}
{{- $values := .root.Values.storage -}}
{{- if and $values.existingClaim (not (kindIs "invalid" $values.fsGroup)) -}}
{{- if and .deletes .root.Values.dump.existingClaim -}}
{{- /* Kubernetes would give the files of the dump, which is writable here, to the group, too. */ -}}
{{- $_ := set $dump "supplementalGroups" (append (default list $dump.supplementalGroups) (int64 $values.fsGroup) | uniq) -}}
{{- else -}}
{{- $_ := set $dump "fsGroup" (int64 $values.fsGroup) -}}
{{- $_ := set $dump "fsGroupChangePolicy" "OnRootMismatch" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $base := .root.Values.podSecurityContext -}}
{{- if .root.Values.openshift.enabled -}}{{- $base = omit $base "runAsUser" "runAsGroup" -}}{{- end -}}
{{- include "dump-ingest.merged" (list $base $dump .role.podSecurityContext) -}}
{{- end -}}

{{/* The part that all pods share. Takes the same arguments. */}}
{{- define "dump-ingest.pod" -}}
serviceAccountName: {{ default (include "dump-ingest.serviceAccountName" .root) .account | quote }}
automountServiceAccountToken: false
# Service links would set variables that begin with DUMP_INGEST_ and look like settings.
enableServiceLinks: false
securityContext:
  {{- include "dump-ingest.identity" . | nindent 2 }}
{{- with (include "dump-ingest.pullSecrets" .root | fromYaml).all }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- $role := .role }}
{{- if .role.hostNetwork }}
hostNetwork: true
{{- $role = merge (dict "dnsPolicy" (default "ClusterFirstWithHostNet" .role.dnsPolicy)) .role }}
{{- end }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "dnsPolicy" "dnsConfig" "hostAliases" }}
{{- with get $role $key }}
{{ $key }}:
  {{- if kindIs "string" . }} {{ . | quote }}{{ else }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Metadata of a pod template. Takes (dict "root" $ "role" ... "component" ... "config" bool "dask" bool).
It has no label with the chart's version, because an upgrade that changes nothing else would restart all pods.
*/}}
{{- define "dump-ingest.podMetadata" -}}
labels:
  {{- include "dump-ingest.selectorLabels" . | nindent 2 }}
  {{- if .dask }}
  {{ include "dump-ingest.fullname" .root }}-client: "true"
  {{- end }}
  {{- with .root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- with .role.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "dump-ingest.annotations" . | fromYaml }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Checksums of everything that a pod reads at its start: it restarts when one of them changes. */}}
{{- define "dump-ingest.annotations" -}}
{{- $all := dict -}}
{{- if and .config (not .root.Values.existingConfigMap) -}}
{{- $_ := set $all "checksum/config" (toYaml (list .root.Values.config .root.Values.anomalyRules) | sha256sum) -}}
{{- end -}}
{{- if .dask -}}
{{- $_ := set $all "checksum/dask" (printf "%s %s" (include "dump-ingest.daskConfig" .root) (toYaml .root.Values.dask.config) | sha256sum) -}}
{{- if include "dump-ingest.generatesTls" .root -}}
{{- $_ := set $all "checksum/tls" (include "dump-ingest.generatedTls" .root | sha256sum) -}}
{{- end -}}
{{- end -}}
{{- include "dump-ingest.merged" (list $all .role.podAnnotations) -}}
{{- end -}}

{{/* The part that all containers share. Takes (dict "root" $ "role" ... "own" map); `own` adds to the security context. */}}
{{- define "dump-ingest.container" -}}
image: {{ include "dump-ingest.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext:
  {{- include "dump-ingest.merged" (list .root.Values.securityContext .own .role.securityContext) | nindent 2 }}
{{- with concat .root.Values.envFrom (default list .role.envFrom) }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .role.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "startupProbe" "livenessProbe" "readinessProbe" "lifecycle" }}
{{- with get $.role $key }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Environment variables of all containers, with those of the store if `store` is true. Takes (dict "root" $ "store" bool "config" bool). */}}
{{- define "dump-ingest.env" -}}
- name: HOME
  value: /tmp
{{- if .config }}
# So that `kubectl exec` finds the store without an option.
- name: DUMP_INGEST_CONFIG
  value: /etc/dump-ingest/config.yaml
{{- end }}
{{- with .root.Values.storage }}
{{- if and $.store .existingSecret }}
{{- range $variable, $key := dict "AWS_ACCESS_KEY_ID" .accessKeyIdKey "AWS_SECRET_ACCESS_KEY" .secretAccessKeyKey "AWS_SESSION_TOKEN" .sessionTokenKey }}
{{- if $key }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $.root.Values.storage.existingSecret | quote }}
      key: {{ $key | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if $.store }}
{{- with .endpointUrl }}
- name: AWS_ENDPOINT_URL
  value: {{ . | quote }}
{{- end }}
{{- with .region }}
- name: AWS_DEFAULT_REGION
  value: {{ . | quote }}
{{- end }}
{{- if .checksumsWhenRequired }}
- name: AWS_REQUEST_CHECKSUM_CALCULATION
  value: when_required
- name: AWS_RESPONSE_CHECKSUM_VALIDATION
  value: when_required
{{- end }}
{{- if or .caBundle.existingConfigMap .caBundle.existingSecret }}
- name: AWS_CA_BUNDLE
  value: {{ printf "/etc/store-ca/%s" .caBundle.key | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Further environment variables of containers that evaluate rules. */}}
{{- define "dump-ingest.rulesEnv" -}}
{{- if include "dump-ingest.hasRules" . }}
- name: DUMP_INGEST_RULES
  value: /etc/dump-ingest/rules.yaml
{{- end }}
{{- with .Values.webhook.existingSecret }}
- name: DUMP_INGEST_WEBHOOK_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . | quote }}
      key: {{ $.Values.webhook.tokenKey | quote }}
{{- end }}
{{- end -}}

{{/*
Mounts. Takes (dict "root" $ "role" ... "config" bool "store" bool "reads" bool "dump" bool "dask" bool "deletes" bool
"token" bool). Only containers that delete dumps may write to them. Containers with `reads` do not write to the store.
*/}}
{{- define "dump-ingest.mounts" -}}
- name: dump-ingest-tmp
  mountPath: /tmp
{{- if .config }}
- name: dump-ingest-config
  mountPath: /etc/dump-ingest
  readOnly: true
{{- end }}
{{- if .dask }}
- name: dump-ingest-dask
  mountPath: /etc/dask
  readOnly: true
{{- if include "dump-ingest.usesTls" .root }}
- name: dump-ingest-dask-tls
  mountPath: /etc/dask-tls
  readOnly: true
{{- end }}
{{- end }}
{{- if .store }}
{{- with .root.Values.storage.caBundle }}
{{- if or .existingConfigMap .existingSecret }}
- name: dump-ingest-store-ca
  mountPath: /etc/store-ca
  readOnly: true
{{- end }}
{{- end }}
{{- if .root.Values.storage.existingClaim }}
- name: dump-ingest-store
  mountPath: {{ .root.Values.storage.mountPath | quote }}
  {{- if .reads }}
  readOnly: true
  {{- end }}
{{- end }}
{{- end }}
{{- if .dump }}
- name: {{ include "dump-ingest.dumpVolume" .root | quote }}
  mountPath: {{ .root.Values.dump.mountPath | quote }}
  readOnly: {{ not .deletes }}
  {{- if .root.Values.dump.hostPath }}
  # A file system that is mounted on the node later becomes visible here, too.
  mountPropagation: HostToContainer
  {{- end }}
{{- end }}
{{- if .token }}
- name: dump-ingest-page-token
  mountPath: /etc/dump-ingest-page
  readOnly: true
{{- end }}
{{- with .role.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volumes for these mounts. Takes the same arguments. */}}
{{- define "dump-ingest.volumes" -}}
{{- $fullname := include "dump-ingest.fullname" .root -}}
- name: dump-ingest-tmp
  emptyDir:
    sizeLimit: {{ .root.Values.tmpSizeLimit }}
{{- if .config }}
- name: dump-ingest-config
  configMap:
    name: {{ default (printf "%s-config" $fullname) .root.Values.existingConfigMap | quote }}
{{- end }}
{{- if .dask }}
- name: dump-ingest-dask
  configMap:
    name: {{ $fullname }}-dask
{{- if include "dump-ingest.usesTls" .root }}
- name: dump-ingest-dask-tls
  secret:
    secretName: {{ include "dump-ingest.tlsSecretName" .root | quote }}
{{- end }}
{{- end }}
{{- if .store }}
{{- with .root.Values.storage.caBundle }}
{{- if .existingConfigMap }}
- name: dump-ingest-store-ca
  configMap:
    name: {{ .existingConfigMap | quote }}
{{- else if .existingSecret }}
- name: dump-ingest-store-ca
  secret:
    secretName: {{ .existingSecret | quote }}
{{- end }}
{{- end }}
{{- with .root.Values.storage.existingClaim }}
- name: dump-ingest-store
  persistentVolumeClaim:
    claimName: {{ . | quote }}
{{- end }}
{{- end }}
{{- if and .dump (not (include "dump-ingest.givenVolume" .root)) }}
- name: {{ include "dump-ingest.dumpVolume" .root | quote }}
  {{- $deletes := .deletes }}
  {{- with .root.Values.dump }}
  {{- if .hostPath }}
  hostPath:
    path: {{ .hostPath | quote }}
    # Not DirectoryOrCreate: Kubernetes would create it as root, and the job could not dump into it.
    type: Directory
  {{- else if .existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .existingClaim | quote }}
    readOnly: {{ not $deletes }}
  {{- else }}
  {{- default (dict "emptyDir" dict) .volume | toYaml | nindent 2 }}
  {{- end }}
  {{- end }}
{{- end }}
{{- if .token }}
- name: dump-ingest-page-token
  secret:
    secretName: {{ .root.Values.page.existingSecret | quote }}
    items:
      - {key: {{ .root.Values.page.tokenKey | quote }}, path: token}
{{- end }}
{{- with .role.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The volume of the training pod that contains the dump, if it is not one of ours. */}}
{{- define "dump-ingest.givenVolume" -}}
{{- if include "dump-ingest.inTrainingPod" . -}}{{- .Values.watcher.sidecar.dumpVolume -}}{{- end -}}
{{- end -}}

{{- define "dump-ingest.dumpVolume" -}}
{{- default "dump-ingest-dump" (include "dump-ingest.givenVolume" .) -}}
{{- end -}}

{{/* Keys of a Deployment or DaemonSet that every role takes. Takes the role. */}}
{{- define "dump-ingest.workload" -}}
{{- with .minReadySeconds }}
minReadySeconds: {{ . }}
{{- end }}
revisionHistoryLimit: {{ .revisionHistoryLimit }}
{{- end -}}

{{/* Annotations of a workload. Takes the role. */}}
{{- define "dump-ingest.workloadAnnotations" -}}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Containers that run first. Takes the role. */}}
{{- define "dump-ingest.initContainers" -}}
{{- with .initContainers }}
initContainers:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
