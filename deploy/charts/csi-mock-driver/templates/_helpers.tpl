{{- define "csi-mock-driver.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Called with a list of the root and an image. */}}
{{- define "csi-mock-driver.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- with ($root.Values.global).imageRegistry -}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") -}}
{{- end -}}
{{- if $image.digest -}}
image: {{ $repository }}@{{ $image.digest }}
{{- else -}}
image: {{ $repository }}:{{ default $root.Chart.AppVersion $image.tag }}
{{- end }}
imagePullPolicy: {{ $root.Values.imagePullPolicy }}
{{- end -}}

{{/* A workload's selector cannot be changed: these labels must stay the same in all versions of the chart. The controller's
     pods carry the attacher's name, by which dashboards and alerts select them. */}}
{{- define "csi-mock-driver.controllerLabels" -}}
app.kubernetes.io/name: csi-attacher
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "csi-mock-driver.nodeLabels" -}}
app.kubernetes.io/name: csi-mock-driver
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: node
{{- end -}}

{{/* Labels of an object itself, beside its name. */}}
{{- define "csi-mock-driver.releaseLabels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "csi-mock-driver.labels" -}}
app.kubernetes.io/name: csi-mock-driver
{{ include "csi-mock-driver.releaseLabels" . }}
{{- end -}}

{{- define "csi-mock-driver.unprivileged" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* The end of a sidecar's container. */}}
{{- define "csi-mock-driver.sidecarEnd" -}}
resources:
  {{- toYaml .resources | nindent 2 }}
{{ include "csi-mock-driver.unprivileged" . }}
volumeMounts:
  - name: socket
    mountPath: /run/csi
{{- end -}}

{{/* A ClusterRoleBinding of the ClusterRole `name` to the controller's account. */}}
{{- define "csi-mock-driver.clusterRoleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "csi-mock-driver.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: {{ .name }}
{{ include "csi-mock-driver.subjects" .root }}
{{- end -}}

{{- define "csi-mock-driver.roleBinding" -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "csi-mock-driver.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
{{ include "csi-mock-driver.subjects" .root }}
{{- end -}}

{{- define "csi-mock-driver.subjects" -}}
subjects:
  - kind: ServiceAccount
    name: {{ include "csi-mock-driver.fullname" . }}-controller
    namespace: {{ .Release.Namespace }}
{{- end -}}
