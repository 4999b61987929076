{{/* The ports of each service; they are fixed inside the cluster. */}}
{{- define "tallygate.ports" -}}
enforcer: { http: 8080, debug: 9080 }
tracker: { http: 8085, debug: 9085 }
indexer: { http: 8090, debug: 9090 }
{{- end }}

{{- define "tallygate.selector" -}}
app.kubernetes.io/name: tallygate
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{- define "tallygate.labels" -}}
{{ include "tallygate.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "tallygate.name" -}}
{{ printf "%s-%s" .root.Release.Name .name | trunc 63 | trimSuffix "-" }}
{{- end }}
