{{/* Names and labels that all objects use. */}}
{{- define "sublet.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- define "sublet.labels" -}}
app.kubernetes.io/name: sublet
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
