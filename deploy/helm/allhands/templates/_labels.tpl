{{- define "allhands.coordinator" -}}
app.kubernetes.io/name: allhands
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: coordinator
{{- end }}

{{- define "allhands.worker" -}}
app.kubernetes.io/name: allhands
app.kubernetes.io/component: worker
{{- end }}
