{{- define "kingpost.name" -}}
{{- if contains "kingpost" .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-kingpost" .Release.Name | trunc 50 | trimSuffix "-" }}{{- end -}}
{{- end -}}

{{/* Labels by which a part's pods are found. Takes a list: root, part. */}}
{{- define "kingpost.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: kingpost
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "kingpost.labels" -}}
{{- $root := index . 0 -}}
{{ include "kingpost.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{/* A value of the configuration's environment: what is not text as JSON, which is TOML as well. Numbers have no exponent. */}}
{{- define "kingpost.value" -}}
{{- if kindIs "string" . -}}{{ . }}
{{- else if or (kindIs "float64" .) (kindIs "int" .) (kindIs "int64" .) -}}
{{- if eq (float64 .) (floor .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else -}}{{ toJson . }}{{- end -}}
{{- end -}}

{{/* Settings as variables: pool.size of "proxy" is KINGPOST__PROXY__POOL__SIZE. Takes a list: section, map. */}}
{{- define "kingpost.settings" -}}
{{- $section := index . 0 -}}
{{- range $key, $value := index . 1 }}
- name: {{ printf "KINGPOST__%s__%s" $section ($key | replace "." "__") | upper }}
  value: {{ include "kingpost.value" $value | quote }}
{{- end }}
{{- end -}}

{{/* [[cluster.nodes]] and the rest of [cluster]. The password comes by the environment. */}}
{{- define "kingpost.cluster" -}}
[cluster]
name = {{ toJson .Values.cluster.name }}
user = {{ toJson .Values.cluster.user }}
database = {{ toJson .Values.cluster.database }}
{{- $root := . }}
{{ range $index := until (ternary (int .Values.node.replicas) 0 .Values.node.enabled) }}
{{- $node := printf "%s-node" (include "kingpost.name" $root) }}
[[cluster.nodes]]
name = "{{ $node }}-{{ $index }}"
address = "{{ $node }}-{{ $index }}.{{ $node }}.{{ $root.Release.Namespace }}.svc:5432"
{{ end -}}
{{ range .Values.cluster.nodes }}
[[cluster.nodes]]
name = {{ toJson .name }}
address = {{ toJson .address }}
{{- if hasKey . "weight" }}
weight = {{ int64 .weight }}
{{- end }}
{{- with .zone }}
zone = {{ toJson . }}
{{- end }}
{{- with .failover }}
failover = {{ toJson . }}
{{- end }}
{{- if hasKey . "failover_priority" }}
failover_priority = {{ int64 .failover_priority }}
{{- end }}
{{ end -}}
{{- end -}}

{{/* Who may log in, with a file each for the password. Takes a list: table, users. */}}
{{- define "kingpost.users" -}}
{{- $table := index . 0 -}}
{{- range $index, $user := index . 1 }}
[[{{ $table }}]]
name = {{ toJson $user.name }}
password_file = "/etc/kingpost-secrets/{{ $table }}-{{ $index }}"
{{- with $user.role }}
role = {{ toJson . }}
{{- end }}
{{- if $user.operator }}
operator = true
{{- end }}
{{ end -}}
{{- end -}}

{{/* The sources of a projected volume with these passwords. Takes a list: table, users. */}}
{{- define "kingpost.secrets" -}}
{{- $table := index . 0 -}}
{{- range $index, $user := index . 1 }}
- secret:
    name: {{ $user.secret.name }}
    items: [{ key: {{ $user.secret.key | quote }}, path: {{ printf "%s-%d" $table $index }} }]
{{- end }}
{{- end -}}

{{- define "kingpost.variables" -}}
{{- with .Values.cluster.passwordSecret }}{{- if .name }}
- name: KINGPOST__CLUSTER__PASSWORD
  valueFrom: { secretKeyRef: { name: {{ .name }}, key: {{ .key }} } }
{{- end }}{{- end }}
{{- include "kingpost.settings" (list "cluster" .Values.cluster.settings) }}
{{- end -}}

{{/* What all pods have. Takes a list: root, part, the part's values. */}}
{{- define "kingpost.pod" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.serviceAccountName }}
serviceAccountName: {{ . }}
{{- end }}
{{- with $root.Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- $user := ternary (int64 $root.Values.node.runAs) 65532 (eq $part "node") }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $user }}
  runAsGroup: {{ $user }}
  fsGroup: {{ $user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
# Pods of one part are best on different hosts, and in different zones.
topologySpreadConstraints:
  {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{ include "kingpost.selector" (list $root $part) | nindent 8 }}
  {{- end }}
{{- end -}}

{{/* Takes a root, or a map with the image among its values, and the chart. */}}
{{- define "kingpost.container" -}}
image: {{ printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
livenessProbe:
  httpGet: { path: /healthz, port: metrics }
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: metrics }
  periodSeconds: 2
  timeoutSeconds: 2
  failureThreshold: 3
{{- end -}}

{{- define "kingpost.annotations" -}}
{{- $root := index . 0 -}}
# A changed configuration is a new pod.
checksum/config: {{ index . 1 | sha256sum }}
{{- if $root.Values.metrics.annotations }}
prometheus.io/scrape: "true"
prometheus.io/port: "9632"
prometheus.io/path: /metrics
{{- end }}
{{- with $root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "kingpost.mounts" -}}
- { name: config, mountPath: /etc/kingpost, readOnly: true }
- { name: secrets, mountPath: /etc/kingpost-secrets, readOnly: true }
{{- range .Values.files }}
- { name: file-{{ . }}, mountPath: /etc/kingpost-files/{{ . }}, readOnly: true }
{{- end }}
{{- end -}}

{{/* Files of secrets are root's and the group's to read: mode 440. Takes a list: root, name of the ConfigMap, sources of secrets. */}}
{{- define "kingpost.volumes" -}}
{{- $root := index . 0 -}}
- name: config
  configMap: { name: {{ index . 1 }} }
- name: secrets
  projected:
    defaultMode: 0440
    sources: {{- index . 2 | default "[]" | nindent 6 }}
{{- range $root.Values.files }}
- name: file-{{ . }}
  secret: { secretName: {{ . }}, defaultMode: 0440 }
{{- end }}
{{- end -}}
