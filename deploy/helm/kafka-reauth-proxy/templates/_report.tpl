{{/* Whether there is a report in this release. */}}
{{- define "kafka-reauth-proxy.hasReport" -}}
{{- if or .Values.report.enabled (eq .Values.mode "report") }}true{{ end -}}
{{- end }}

{{- define "kafka-reauth-proxy.reportLabels" -}}
{{- include "kafka-reauth-proxy.labels" . | replace (printf "component: %s" .Values.mode) "component: report" -}}
{{- end }}

{{/* Where the events are: as report.events says, or where this release's own proxies deliver them. */}}
{{- define "kafka-reauth-proxy.reportEvents" -}}
{{- .Values.report.events | default (dig "events" "deliver" "to" "" .Values.config) -}}
{{- end }}

{{- define "kafka-reauth-proxy.isRemote" -}}
{{- if regexMatch "^[a-z][a-z0-9]*:" . }}true{{ end -}}
{{- end }}

{{/* The folders of the report that are no addresses. */}}
{{- define "kafka-reauth-proxy.reportFolders" -}}
{{- range $name := list "state" "out" "history" -}}
{{- $path := get $.Values.report $name -}}
{{- if and $path (not (include "kafka-reauth-proxy.isRemote" $path)) }}
- {name: {{ $name }}, path: {{ $path | quote }}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Whether a path is on a volume that is mounted. */}}
{{- define "kafka-reauth-proxy.isMounted" -}}
{{- $path := clean .path -}}
{{- range .mounts }}{{ if or (eq $path (clean .)) (hasPrefix (printf "%s/" (clean .)) $path) }}true{{ end }}{{ end -}}
{{- end }}

{{/* What would be rendered, and refused by the API server, or fail in the pod. */}}
{{- define "kafka-reauth-proxy.refuseReport" -}}
{{- $report := .Values.report -}}
{{- $events := include "kafka-reauth-proxy.reportEvents" . -}}
{{- range $key, $place := dict "events" $events "state" $report.state "out" $report.out "history" $report.history -}}
{{- if hasPrefix "file:" $place -}}
{{- fail (printf "report.%s is %s: name the folder by its path, such as /mnt/events" $key $place) -}}
{{- end -}}
{{- end -}}
{{- if and $report.serve.enabled (ne (clean $report.out) "/var/lib/reauth-report/report") -}}
{{- fail (printf "report.out is %s: the page is served from /var/lib/reauth-report/report alone; set report.serve.enabled: false, and see docs/fleet.md for buckets" $report.out) -}}
{{- end -}}
{{- $delivered := dig "events" "deliver" "to" "" .Values.config -}}
{{- if not $events -}}
{{- fail "report.events is required: where the events are, kafka:TOPIC, s3a://… or a folder that report.volumeMounts has" -}}
{{- end -}}
{{- if and $delivered $report.events (ne $delivered $report.events) (hasPrefix "kafka:" $delivered) -}}
{{- fail (printf "report.events is %s, and config.events.deliver.to %s: the proxies' events would not be in the report" $report.events $delivered) -}}
{{- end -}}
{{- if eq .Values.mode "report" -}}
{{- if or .Values.config .Values.workload.kind .Values.workload.included -}}
{{- fail "mode: report makes the report alone: leave config and workload out, or set mode: sidecar or gateway and report.enabled: true" -}}
{{- end -}}
{{- end -}}
{{- $mounts := list -}}
{{- range $report.secrets }}{{ $mounts = append $mounts .mountPath }}{{ end -}}
{{- range $report.volumeMounts }}{{ $mounts = append $mounts .mountPath }}{{ end -}}
{{- if hasPrefix "kafka:" $events -}}
{{- if not (or $report.commandConfig $report.bootstrapServers) -}}
{{- fail (printf "report.commandConfig or report.bootstrapServers is required for %s: where its brokers are" $events) -}}
{{- end -}}
{{- with $report.commandConfig -}}
{{- if not (include "kafka-reauth-proxy.isMounted" (dict "path" . "mounts" $mounts)) -}}
{{- fail (printf "report.commandConfig is %s: nothing is mounted there, name its Secret in report.secrets" .) -}}
{{- end -}}
{{- end -}}
{{- else if or $report.commandConfig $report.bootstrapServers -}}
{{- fail (printf "report.commandConfig and report.bootstrapServers are for kafka:TOPIC, and report.events is %s" $events) -}}
{{- else if not (include "kafka-reauth-proxy.isRemote" $events) -}}
{{- if not (include "kafka-reauth-proxy.isMounted" (dict "path" $events "mounts" $mounts)) -}}
{{- fail (printf "report.events is %s: nothing is mounted there, add it to report.volumes and report.volumeMounts" $events) -}}
{{- end -}}
{{- end -}}
{{- if and $report.history (or (include "kafka-reauth-proxy.isRemote" $report.history) (include "kafka-reauth-proxy.isRemote" $report.out)) -}}
{{- fail "report.history takes report.out, and itself, on the volume" -}}
{{- end -}}
{{- range include "kafka-reauth-proxy.reportFolders" . | fromYamlArray -}}
{{- if not (hasPrefix "/var/lib/reauth-report/" (clean .path)) -}}
{{- fail (printf "report.%s is %s: must be below /var/lib/reauth-report, where the volume is mounted, or the address of a bucket" .name .path) -}}
{{- end -}}
{{- if hasKey $report.volume "emptyDir" -}}
{{- fail (printf "report.volume: an emptyDir is gone with each run, and report.%s is in it: name a volume that stays, or put report.out in a bucket and leave report.state empty" .name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The volume of state, report and history, where there is one of them that is in no bucket. */}}
{{- define "kafka-reauth-proxy.reportVolume" -}}
{{- if include "kafka-reauth-proxy.reportFolders" . }}
- name: reauth-report
  {{- if .Values.report.volume }}
  {{- toYaml .Values.report.volume | nindent 2 }}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ .Values.name }}-report}
  {{- end }}
{{- end }}
{{- end }}

{{/* What else the run has. */}}
{{- define "kafka-reauth-proxy.reportMounts" -}}
{{- range .Values.report.secrets }}
- {name: reauth-report-{{ .name }}, mountPath: {{ .mountPath }}, readOnly: true}
{{- end }}
{{- with .Values.report.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "kafka-reauth-proxy.reportVolumes" -}}
{{- range .Values.report.secrets }}
- name: reauth-report-{{ .name }}
  secret:
    secretName: {{ .secretName }}
    items: # by name, so that a missing key is named in the pod's events
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- with .Values.report.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* What both pods have. */}}
{{- define "kafka-reauth-proxy.reportPod" -}}
serviceAccountName: {{ .Values.name }}-report
automountServiceAccountToken: false
enableServiceLinks: false
{{- include "kafka-reauth-proxy.placement" . }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {fsGroup: 65532, fsGroupChangePolicy: OnRootMismatch}
{{- end }}

{{/* What all their containers have. */}}
{{- define "kafka-reauth-proxy.reportContainer" -}}
image: {{ include "kafka-reauth-proxy.image" (dict "image" .Values.report.image "root" .) }}
{{- if ne .Values.report.image.pullPolicy "IfNotPresent" }}
imagePullPolicy: {{ .Values.report.image.pullPolicy }}
{{- end }}
{{- with .Values.report.env }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
# What is wrong is one line: `kubectl describe pod` then shows it.
terminationMessagePolicy: FallbackToLogsOnError
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities: {drop: [ALL]}
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "kafka-reauth-proxy.reportArguments" -}}
- report
- {{ printf "--events=%s" (include "kafka-reauth-proxy.reportEvents" .) | quote }}
{{- with .Values.report }}
{{- with .bootstrapServers }}
- {{ printf "--bootstrap-server=%s" . | quote }}
{{- end }}
{{- with .commandConfig }}
- {{ printf "--command-config=%s" . | quote }}
{{- end }}
{{- with .state }}
- {{ printf "--state=%s" . | quote }}
{{- end }}
- {{ printf "--out=%s" .out | quote }}
{{- with .history }}
- {{ printf "--history=%s" . | quote }}
- {{ printf "--history-days=%d" (int $.Values.report.historyDays) | quote }}
{{- end }}
{{- range .options }}
- {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
