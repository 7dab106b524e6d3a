{{/* The settings: defaults, over them the profile, over it what the user set. */}}
{{- define "ambit.values" -}}
{{- $profile := .Files.Get (printf "profiles/%s.yaml" .Values.profile) -}}
{{- if not $profile -}}
{{- fail (printf "profile %q: there is no such set of defaults; look into profiles/" .Values.profile) -}}
{{- end -}}
{{- $own := deepCopy (omit .Values "defaults" "profile" "global") -}}
{{- mustMergeOverwrite (deepCopy .Values.defaults) (fromYaml $profile) $own | toYaml -}}
{{- end -}}

{{- define "ambit.image" -}}
{{- printf "%s:%s" .v.image.repository (.v.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}

{{/* Labels of every object; `app` is Istio's name of the part. */}}
{{- define "ambit.labels" -}}
app.kubernetes.io/name: ambit
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: ambit
app.kubernetes.io/component: {{ .app }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- if .app }}
app: {{ .app }}
{{- end }}
{{- end -}}

{{- define "ambit.metadata" -}}
metadata:
  name: {{ .name }}
  {{- if .namespaced }}
  namespace: {{ .root.Release.Namespace }}
  {{- end }}
  labels: {{- include "ambit.labels" . | nindent 4 }}
{{- end -}}

{{- define "ambit.pull" -}}
image: {{ include "ambit.image" . }}
imagePullPolicy: {{ .v.image.pullPolicy }}
{{- end -}}

{{/* Where and how important a part's pods are. */}}
{{- define "ambit.placement" -}}
{{- with .v.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
priorityClassName: {{ .part.priorityClassName }}
nodeSelector: {{- toYaml .part.nodeSelector | nindent 2 }}
tolerations: {{- toYaml .part.tolerations | nindent 2 }}
{{- end -}}

{{- define "ambit.logging" -}}
- {name: RUST_LOG, value: {{ .logLevel | quote }}}
- {name: LOG_FORMAT, value: {{ .logFormat | quote }}}
{{- end -}}

{{- define "ambit.field" -}}
- name: {{ .name }}
  valueFrom: {fieldRef: {fieldPath: {{ .path }}}}
{{- end -}}

{{/* What makes an object part of the uninstalling, at the weight given. */}}
{{- define "ambit.uninstall.hook" -}}
annotations:
  helm.sh/hook: pre-delete
  helm.sh/hook-weight: {{ . | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}
