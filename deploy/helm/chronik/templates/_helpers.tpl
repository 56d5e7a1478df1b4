{{- define "chronik.labels" -}}
app.kubernetes.io/name: chronik
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
