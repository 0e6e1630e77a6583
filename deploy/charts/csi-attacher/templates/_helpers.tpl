{{- define "csi-attacher.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "csi-attacher.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "csi-attacher.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Called with a list of the root and an image. */}}
{{- define "csi-attacher.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $repository := $image.repository -}}
{{- with ($root.Values.global).imageRegistry -}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") -}}
{{- end -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "csi-attacher.sanitizedDriver" -}}
{{ regexReplaceAll "[^a-zA-Z0-9-]" .Values.driver.name "-" }}
{{- end -}}

{{- define "csi-attacher.leaseName" -}}
external-attacher-leader-{{ include "csi-attacher.sanitizedDriver" . }}
{{- end -}}

{{/* The port of health alone; empty if there is none. */}}
{{- define "csi-attacher.healthPort" -}}
{{- if .Values.http.healthPort -}}
{{- .Values.http.healthPort -}}
{{- else if .Values.metrics.authentication.enabled -}}
8082
{{- end -}}
{{- end -}}

{{/* A Deployment's selector cannot be changed: these labels must stay the same in all versions of the chart. */}}
{{- define "csi-attacher.selectorLabels" -}}
app.kubernetes.io/name: csi-attacher
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "csi-attacher.labels" -}}
{{ include "csi-attacher.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of the objects of `helm test`. Without the selector's labels: the Deployment must not adopt the pod. */}}
{{- define "csi-attacher.testMetadata" -}}
labels:
  app.kubernetes.io/name: csi-attacher-test
  app.kubernetes.io/instance: {{ .Release.Name }}
  {{- with .Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  helm.sh/hook: test
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "csi-attacher.testContainer" -}}
image: {{ include "csi-attacher.image" (list . .Values.test.image) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
resources:
  requests:
    cpu: 10m
    memory: 32Mi
  limits:
    memory: 128Mi
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
{{- end -}}

{{/* A pod's security context without the users and groups that OpenShift's restricted-v2 sets. Called with a list of the root and the context. */}}
{{- define "csi-attacher.podSecurityContext" -}}
{{- $root := index . 0 -}}
{{- $openshift := toString $root.Values.openshift -}}
{{- if or (eq $openshift "true") (and (eq $openshift "auto") ($root.Capabilities.APIVersions.Has "security.openshift.io/v1")) -}}
{{- toYaml (omit (index . 1) "runAsUser" "runAsGroup" "fsGroup") -}}
{{- else -}}
{{- toYaml (index . 1) -}}
{{- end -}}
{{- end -}}
