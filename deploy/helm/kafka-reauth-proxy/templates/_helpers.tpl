{{/* What an address HOST:PORT says of itself. */}}
{{- define "kafka-reauth-proxy.port" -}}
{{- splitList ":" . | last -}}
{{- end }}

{{- define "kafka-reauth-proxy.isLoopback" -}}
{{- if or (hasPrefix "127." .) (hasPrefix "localhost:" .) (hasPrefix "[::1]:" .) }}true{{ end -}}
{{- end }}

{{/* Whether clients come from elsewhere: then the proxy stands in front of the workload. */}}
{{- define "kafka-reauth-proxy.isInFront" -}}
{{- range .Values.config.listeners }}{{ if not (include "kafka-reauth-proxy.isLoopback" .address) }}true{{ end }}{{ end -}}
{{- end }}

{{/* The ports that the workload's own containers declare, as a NetworkPolicy has them. */}}
{{- define "kafka-reauth-proxy.workloadPorts" -}}
{{- $pod := dig "template" "spec" dict (.Values.workload.spec | default dict) -}}
{{- range concat ($pod.containers | default list) ($pod.initContainers | default list) }}
{{- range .ports }}
- port: {{ .containerPort }}
{{- with .protocol }}
  protocol: {{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* All else on the proxy's root is read-only, and is gone when its container is started anew. */}}
{{- define "kafka-reauth-proxy.refuseUnlessMounted" -}}
{{- if not (regexMatch "^/var/lib/reauth-proxy/(state|events)(/|$)" (clean .path)) -}}
{{- fail (printf "%s is %s: must be below /var/lib/reauth-proxy/state or /var/lib/reauth-proxy/events, where volumes are mounted that can be written to" .key .path) -}}
{{- end -}}
{{- end }}

{{/* What would be rendered, and refused by the API server, or fail in the pod. */}}
{{- define "kafka-reauth-proxy.refuse" -}}
{{- $config := .Values.config -}}
{{- $url := dig "url" "" ($config.store | default dict) | default "sqlite:state.db" -}}
{{- include "kafka-reauth-proxy.refuseUnlessMounted" (dict "key" "config.store.url" "path" (regexReplaceAll "^[a-z]*:" $url "")) -}}
{{- with dig "directory" "" ($config.events | default dict) -}}
{{- include "kafka-reauth-proxy.refuseUnlessMounted" (dict "key" "config.events.directory" "path" .) -}}
{{- end -}}
{{- with dig "socket" "" ($config.admin | default dict) -}}
{{- include "kafka-reauth-proxy.refuseUnlessMounted" (dict "key" "config.admin.socket" "path" .) -}}
{{- end -}}
{{- $volumes := list "config" "state" "events" -}}
{{- range concat .Values.secrets .Values.tokens -}}
{{- if has .name $volumes -}}
{{- fail (printf "secrets and tokens: the name %s is taken by another volume of the proxy" .name) -}}
{{- end -}}
{{- $volumes = append $volumes .name -}}
{{- end -}}
{{- $transparent := include "kafka-reauth-proxy.transparent" . -}}
{{- if and .Values.redirect.enabled (not $transparent) -}}
{{- fail "redirect.enabled: needs a listener with routing: transparent, to redirect to" -}}
{{- end -}}
{{- if and $transparent (not .Values.redirect.enabled) -}}
{{- fail "routing: transparent needs redirect.enabled: true, or no client comes to the listener" -}}
{{- end -}}
{{- with .Values.workload -}}
{{- if .kind -}}
{{- $_ := required (printf "workload.name is required with workload.kind: %s" .kind) .name -}}
{{- $template := (.spec | default dict).template | default dict -}}
{{- if not ($template.spec | default dict).containers -}}
{{- fail (printf "workload.spec must be the whole spec of the %s, with template.spec.containers" .kind) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The address of the listener that clients are redirected to. */}}
{{- define "kafka-reauth-proxy.transparent" -}}
{{- $addresses := list -}}
{{- range .Values.config.listeners }}{{ if eq .routing "transparent" }}{{ $addresses = append $addresses .address }}{{ end }}{{ end -}}
{{- with $addresses }}{{ first . }}{{ end -}}
{{- end }}

{{/* Another configuration is another ConfigMap, so that pods are replaced and can be rolled back. */}}
{{- define "kafka-reauth-proxy.configMap" -}}
{{- printf "%s-%s" .Values.name (toYaml .Values.config | sha256sum | trunc 10) -}}
{{- end }}

{{- define "kafka-reauth-proxy.httpPort" -}}
{{- $http := .Values.config.http | default dict -}}
{{- $address := $http.address | required "config.http.address is required: the probes ask there" -}}
{{- if include "kafka-reauth-proxy.isLoopback" $address -}}
{{- fail (printf "config.http.address is %s: the kubelet cannot ask there" $address) -}}
{{- end -}}
{{- include "kafka-reauth-proxy.port" $address -}}
{{- end }}

{{- define "kafka-reauth-proxy.gracePeriod" -}}
{{- $drain := get .Values.config "shutdown.drain.ms" | default 30000 | int -}}
{{- $least := add .Values.preStopSeconds (div (add $drain 999) 1000) 5 | int -}}
{{- $given := .Values.terminationGracePeriodSeconds | int -}}
{{- if le $given $least -}}
{{- fail (printf "terminationGracePeriodSeconds is %d: must be above %d, preStopSeconds, shutdown.drain.ms and 5 s together" $given $least) -}}
{{- end -}}
{{- $given -}}
{{- end }}

{{- define "kafka-reauth-proxy.initContainers" -}}
{{- $values := .Values -}}
{{- $httpPort := include "kafka-reauth-proxy.httpPort" . | int -}}
{{- if $values.redirect.enabled }}
- name: reauth-redirect
  image: {{ $values.redirect.image.repository }}:{{ $values.redirect.image.tag | default .Chart.AppVersion }}
  args: [up]
  env:
    - name: PROXY_PORT
      value: {{ include "kafka-reauth-proxy.transparent" . | include "kafka-reauth-proxy.port" | quote }}
    - {name: PROXY_UID, value: "65532"}
    - {name: BROKER_PORTS, value: {{ join "," $values.redirect.brokerPorts | quote }}}
    - {name: TOOL, value: nft}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  securityContext:
    runAsNonRoot: false
    runAsUser: 0 # a capability of another user would have to be inherited
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL], add: [NET_ADMIN]}
    seccompProfile: {type: RuntimeDefault}
{{- end }}
- name: reauth-proxy
  image: {{ $values.image.repository }}:{{ $values.image.tag | default .Chart.AppVersion }}
  {{- if ne $values.image.pullPolicy "IfNotPresent" }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  {{- end }}
  restartPolicy: Always # a native sidecar: starts before the main container, ends after it
  args: [serve, --config, /etc/reauth-proxy/proxy.yaml]
  {{- with $values.env }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    {{- range $index, $listener := $values.config.listeners }}
    - name: reauth-client{{ if $index }}{{ $index }}{{ else }}s{{ end }} # 15 characters at most
      containerPort: {{ include "kafka-reauth-proxy.port" $listener.address }}
    {{- end }}
    - name: reauth-metrics
      containerPort: {{ $httpPort }}
  # Not /readyz: beside a broker, that waits for the broker, which waits for this probe.
  startupProbe:
    httpGet: {path: /healthz, port: reauth-metrics}
    periodSeconds: 1
    failureThreshold: 30
  readinessProbe:
    httpGet: {path: /readyz, port: reauth-metrics}
    periodSeconds: 5
    timeoutSeconds: 2
    failureThreshold: 2
  livenessProbe:
    httpGet: {path: /healthz, port: reauth-metrics}
    periodSeconds: 10
    timeoutSeconds: 5
    failureThreshold: 6
  lifecycle:
    preStop:
      sleep: {seconds: {{ $values.preStopSeconds }}} # until nobody is sent here any more
  # A mistake in the configuration is one line: `kubectl describe pod` then shows it.
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml $values.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    {{- range concat $values.secrets $values.tokens }}
    - {name: reauth-proxy-{{ .name }}, mountPath: {{ .mountPath }}, readOnly: true}
    {{- end }}
    - {name: reauth-proxy-config, mountPath: /etc/reauth-proxy, readOnly: true}
    - {name: reauth-proxy-state, mountPath: /var/lib/reauth-proxy/state}
    - {name: reauth-proxy-events, mountPath: /var/lib/reauth-proxy/events}
{{- end }}

{{- define "kafka-reauth-proxy.volumes" -}}
{{- range .Values.secrets }}
- name: reauth-proxy-{{ .name }}
  secret:
    secretName: {{ .secretName }}
    items: # by name, so that a missing key is named in the pod's events
      {{- range .keys }}
      - {key: {{ . }}, path: {{ . }}}
      {{- end }}
{{- end }}
{{- range .Values.tokens }}
- name: reauth-proxy-{{ .name }}
  projected:
    sources:
      - serviceAccountToken:
          audience: {{ .audience | quote }}
          expirationSeconds: {{ .expirationSeconds | default 3600 | int }}
          path: token
{{- end }}
- name: reauth-proxy-config
  configMap: {name: {{ include "kafka-reauth-proxy.configMap" . }}}
- name: reauth-proxy-state
  {{- toYaml .Values.state | nindent 2 }}
- name: reauth-proxy-events
  {{- toYaml .Values.events | nindent 2 }}
{{- end }}
