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

{{/* `helm upgrade --reuse-values` has the defaults of the chart that was there before, and none that came since. */}}
{{- define "kafka-reauth-proxy.refuseOldDefaults" -}}
{{- range list "mode" "service" "liveConfig" "prometheusRule" "dashboards" "report" -}}
{{- if not (hasKey $.Values .) -}}
{{- fail (printf "values: %s is missing, which an earlier chart did not have: upgrade with --reset-then-reuse-values in place of --reuse-values" .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Helm deletes what a release does not make any more: a workload with its data, or the address that clients have. */}}
{{- define "kafka-reauth-proxy.refuseOtherMode" -}}
{{- range $kind := list "StatefulSet" "Deployment" -}}
{{- range (lookup "apps/v1" $kind $.Release.Namespace "").items -}}
{{- if eq $.Release.Name (dig "annotations" "meta.helm.sh/release-name" "" .metadata) -}}
{{- $is := ternary "sidecar" "" (hasKey (.metadata.labels | default dict) "reauth-proxy") -}}
{{- if eq "gateway" (dig "labels" "app.kubernetes.io/component" "" .metadata) }}{{ $is = "gateway" }}{{ end -}}
{{- if and $is (ne $is $.Values.mode) -}}
{{- fail (printf "mode: %s: the release %s is a %s, and the upgrade would delete %s/%s: install the %s as another release, with another name, and uninstall this one when nobody needs it" $.Values.mode $.Release.Name $is (lower $kind) .metadata.name $.Values.mode) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Any replica of a gateway serves any client: what decides about clients must not be one replica's own. */}}
{{- define "kafka-reauth-proxy.refuseUnlessShared" -}}
{{- $store := .Values.config.store | default dict -}}
{{- if gt (int .Values.replicas) 1 -}}
{{- if hasKey .Values.state "persistentVolumeClaim" -}}
{{- fail "state: replicas would write to one file of a claim; leave its volume with each pod, or set replicas to 1" -}}
{{- end -}}
{{- if and (hasPrefix "sqlite:" ($store.url | default "sqlite:")) (eq "enforce" (dig "mode" "" (.Values.config.authorizer | default dict))) -}}
{{- fail "config.store.url: with sqlite: each replica has ACLs of its own, which authorizer.mode: enforce would apply; set it to broker:PATH, or replicas to 1" -}}
{{- end -}}
{{- range .Values.config.listeners -}}
{{- $verifies := ne "broker" (get . "sasl.termination" | default "proxy") -}}
{{- $scram := get . "sasl.enabled.mechanisms" | default list | join "," | contains "SCRAM" -}}
{{- if and $verifies $scram (not (get $store "users.file")) -}}
{{- fail "config.store.users.file: without it each replica has SCRAM users of its own; set it to a file of a Secret, or replicas to 1" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What would be left out without a word: values for pods that this release does not make. */}}
{{- define "kafka-reauth-proxy.refuseOfOthers" -}}
{{- $others := list "affinity" "serviceAccountName" "topologySpreadConstraints" -}}
{{- if not (include "kafka-reauth-proxy.hasReport" .) -}}
{{- $others = concat $others (list "nodeSelector" "podAnnotations" "podLabels" "priorityClassName" "tolerations") -}}
{{- end -}}
{{- range $others -}}
{{- if and (get $.Values .) (ne $.Values.mode "gateway") -}}
{{- fail (printf "%s is for the pods of a gateway: what a workload has stands in workload.spec" .) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* Pods that no sidecar can work in. */}}
{{- define "kafka-reauth-proxy.refusePod" -}}
{{- if and .pod.hostNetwork .redirected -}}
{{- fail "redirect.enabled: workload.spec has hostNetwork, and all that the node dials would be redirected" -}}
{{- end -}}
{{- if has "windows" (list (dig "os" "name" "" .pod) (dig "nodeSelector" "kubernetes.io/os" "" .pod)) -}}
{{- fail "workload.spec: the proxy runs on Linux alone: not on nodes with Windows" -}}
{{- end -}}
{{- range concat .pod.containers (.pod.initContainers | default list) -}}
{{- if has .name (list "reauth-proxy" "reauth-redirect") -}}
{{- fail (printf "workload.spec has a container named %s already: rename or remove it" .name) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* What would be rendered, and refused by the API server, or fail in the pod. */}}
{{- define "kafka-reauth-proxy.refuse" -}}
{{- include "kafka-reauth-proxy.refuseOldDefaults" . -}}
{{- include "kafka-reauth-proxy.refuseOtherMode" . -}}
{{- include "kafka-reauth-proxy.refuseOfOthers" . -}}
{{- if eq .Values.mode "report" }}{{ include "kafka-reauth-proxy.refuseReport" . }}{{ end -}}{{/* a workload beside it */}}
{{- $config := .Values.config -}}
{{- $url := ($config.store | default dict).url | default "sqlite:state.db" -}}
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
{{- if eq .Values.mode "gateway" -}}
{{- if or .Values.workload.kind .Values.workload.included -}}
{{- fail "workload: a gateway stands beside none; leave it out, or set mode: sidecar" -}}
{{- end -}}
{{- include "kafka-reauth-proxy.refuseUnlessShared" . -}}
{{- $balanced := list "LoadBalancer" -}}
{{- range $key, $types := dict "externalTrafficPolicy" (list "LoadBalancer" "NodePort") "loadBalancerClass" $balanced "loadBalancerSourceRanges" $balanced -}}
{{- if and (get $.Values.service $key) (not (has $.Values.service.type $types)) -}}
{{- fail (printf "service.%s needs service.type: %s, got %s" $key (join " or " $types) $.Values.service.type) -}}
{{- end -}}
{{- end -}}
{{- range $config.listeners -}}
{{- if ne .routing "gateway" -}}
{{- fail (printf "mode: gateway needs routing: gateway, got %s" .routing) -}}
{{- end -}}
{{- if include "kafka-reauth-proxy.isLoopback" .address -}}
{{- fail (printf "mode: gateway: the address of a listener is %s: nobody else can connect there" .address) -}}
{{- end -}}
{{- end -}}
{{- else if not (or .Values.workload.kind .Values.workload.included) -}}
{{- fail "mode: sidecar needs workload.kind, name and spec: what the proxy stands beside. A chart of your own that includes the templates sets workload.included: true; for a proxy of its own in front of a cluster set mode: gateway" -}}
{{- end -}}
{{- with .Values.workload -}}
{{- if .kind -}}
{{- if .included -}}
{{- fail "workload.included: the workload is made either by this chart (kind, name, spec) or by yours" -}}
{{- end -}}
{{- $_ := required (printf "workload.name is required with workload.kind: %s" .kind) .name -}}
{{- $template := (.spec | default dict).template | default dict -}}
{{- if not ($template.spec | default dict).containers -}}
{{- fail (printf "workload.spec must be the whole spec of the %s, with template.spec.containers" .kind) -}}
{{- end -}}
{{- include "kafka-reauth-proxy.refusePod" (dict "pod" $template.spec "redirected" $.Values.redirect.enabled) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{/* The address of the listener that clients are redirected to. */}}
{{- define "kafka-reauth-proxy.transparent" -}}
{{- $addresses := list -}}
{{- range .Values.config.listeners }}{{ if eq .routing "transparent" }}{{ $addresses = append $addresses .address }}{{ end }}{{ end -}}
{{- with $addresses }}{{ first . }}{{ end -}}
{{- end }}

{{/* The configuration as the proxy gets it: a gateway's Service is the host that it advertises, its status page links
     to this release's report, and events fit the volume that the chart has for them, or the kubelet would evict the
     pod. */}}
{{- define "kafka-reauth-proxy.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $events := $config.events | default dict -}}
{{- if and $events.directory (not (hasKey $events "retention.bytes")) (eq "2Gi" (dig "emptyDir" "sizeLimit" "" (include "kafka-reauth-proxy.source" .Values.events | fromYaml))) -}}
{{- $_ := set $events "retention.bytes" 1073741824 -}}
{{- end -}}
{{- if and .Values.report.enabled .Values.report.serve.enabled $config.http (not (hasKey ($config.http | default dict) "report.url")) -}}
{{- $_ := set $config.http "report.url" (printf "http://%s-report.%s.svc:9405/" .Values.name .Release.Namespace) -}}
{{- end -}}
{{- if eq .Values.mode "gateway" -}}
{{- range $config.listeners -}}
{{- if not (get . "advertised.host") -}}
{{- if ne $.Values.service.type "ClusterIP" -}}
{{- fail (printf "config.listeners: advertised.host is required with service.type: %s, the name that clients outside of the cluster have for it" $.Values.service.type) -}}
{{- end -}}
{{- $_ := set . "advertised.host" (printf "%s.%s.svc" $.Values.name $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end }}

{{/* Another configuration is another ConfigMap, so that pods are replaced and can be rolled back. */}}
{{- define "kafka-reauth-proxy.configMap" -}}
{{- if .Values.liveConfig -}}
{{ .Values.name }}
{{- else -}}
{{- printf "%s-%s" .Values.name (include "kafka-reauth-proxy.config" . | sha256sum | trunc 10) -}}
{{- end -}}
{{- end }}

{{- define "kafka-reauth-proxy.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: {{ .Values.mode }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Metadata of pods that the chart makes itself: selectors' labels, and those that stay with an upgrade. */}}
{{- define "kafka-reauth-proxy.podMetadata" -}}
{{- with .root.Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $standard := dict "app.kubernetes.io/name" .root.Chart.Name "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/component" .component }}
labels: {{- merge .labels $standard .root.Values.podLabels | toYaml | nindent 2 }}
{{- end }}

{{/* Which nodes such pods run on, and before which others. */}}
{{- define "kafka-reauth-proxy.placement" -}}
{{- range $key := list "nodeSelector" "tolerations" "priorityClassName" }}
{{- with get $.Values $key }}
{{ $key }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end }}

{{/* By digest, where one is given: a tag may come to name another image. */}}
{{- define "kafka-reauth-proxy.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* Ports of a Service: of each listener its own, and one for each broker unless brokers have names (broker.hosts). */}}
{{- define "kafka-reauth-proxy.servicePorts" -}}
{{- include "kafka-reauth-proxy.refuse" . -}}
{{- $nodePorts := eq .Values.service.type "NodePort" -}}
{{- range $index, $listener := .Values.config.listeners }}
{{- $name := ternary "clients" (printf "clients%d" $index) (eq $index 0) }}
{{- $ports := list (dict "name" $name "port" (include "kafka-reauth-proxy.port" $listener.address | int)) }}
{{- $brokerPorts := get $listener "broker.ports" | default "0-0" }}
{{- range ternary list $.Values.service.brokers (hasKey $listener "broker.hosts") }}
{{- $port := 0 }}
{{- if kindIs "map" $brokerPorts }}
{{- $port = get $brokerPorts (toString .) | int }}
{{- else }}
{{- $range := splitList "-" $brokerPorts }}
{{- $port = add (first $range | int) (int .) }}
{{- $port = ternary $port 0 (le $port (last $range | int64)) }}
{{- end }}
{{- if not $port }}
{{- fail (printf "service.brokers: broker %d has no port within broker.ports: %v" (int .) $brokerPorts) }}
{{- end }}
{{- $ports = append $ports (dict "name" (printf "%s-%d" $name (int .)) "port" $port) }}
{{- end }}
{{- range $ports }}
{{- $port := int .port }}
- name: {{ .name }}
  port: {{ $port }}
  {{- if $nodePorts }}
  {{- if or (lt $port 30000) (gt $port 32767) }}
  {{- fail (printf "service.type: NodePort needs listeners' address and broker.ports within 30000-32767, the ports of nodes; got %d" $port) }}
  {{- end }}
  nodePort: {{ $port }}
  {{- end }}
{{- end }}
{{- end }}
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
{{- $parts := "preStopSeconds, shutdown.drain.ms and 5 s" -}}
{{- $events := .Values.config.events | default dict -}}
{{- $deliver := $events.deliver | default dict -}}
{{- if $deliver.to -}}
{{- $least = add $least (div (add (get $deliver "drain.ms" | default 10000 | int) 999) 1000) 5 | int -}}
{{- $parts = "preStopSeconds, shutdown.drain.ms, events.deliver.drain.ms and 10 s" -}}
{{- end -}}
{{- $given := .Values.terminationGracePeriodSeconds | int -}}
{{- if le $given $least -}}
{{- fail (printf "terminationGracePeriodSeconds is %d: must be above %d, %s together" $given $least $parts) -}}
{{- end -}}
{{- $given -}}
{{- end }}

{{- define "kafka-reauth-proxy.initContainers" -}}
{{- $values := .Values -}}
{{- if $values.redirect.enabled }}
- name: reauth-redirect
  image: {{ include "kafka-reauth-proxy.image" (dict "image" $values.redirect.image "root" .) }}
  args: [up]
  env:
    - name: PROXY_PORT
      value: {{ include "kafka-reauth-proxy.transparent" . | include "kafka-reauth-proxy.port" | quote }}
    - {name: PROXY_UID, value: "60092"}
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
{{- include "kafka-reauth-proxy.container" . }}
{{- end }}

{{/* The same for a sidecar and for a gateway, but for what keeps it beside the main container. */}}
{{- define "kafka-reauth-proxy.container" }}
{{- $values := .Values }}
{{- $httpPort := include "kafka-reauth-proxy.httpPort" . | int }}
- name: reauth-proxy
  image: {{ include "kafka-reauth-proxy.image" (dict "image" $values.image "root" .) }}
  {{- if ne $values.image.pullPolicy "IfNotPresent" }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  {{- end }}
  {{- if eq $values.mode "sidecar" }}
  restartPolicy: Always # a native sidecar: starts before the main container, ends after it
  {{- end }}
  args: [serve, --config, /etc/reauth-proxy/proxy.yaml, --follow]
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
      sleep: {seconds: {{ $values.preStopSeconds }}} # until no client is sent here any more
  # A mistake in the configuration is one line: `kubectl describe pod` then shows it.
  terminationMessagePolicy: FallbackToLogsOnError
  resources: {{- toYaml $values.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: {{ ternary 60092 65532 $values.redirect.enabled }} # many applications' images run as 65532
    runAsGroup: 65532
    readOnlyRootFilesystem: true
    allowPrivilegeEscalation: false
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    {{- with $values.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    {{- range concat $values.secrets $values.tokens }}
    - {name: reauth-proxy-{{ .name }}, mountPath: {{ .mountPath }}, readOnly: true}
    {{- end }}
    - {name: reauth-proxy-config, mountPath: /etc/reauth-proxy, readOnly: true}
    - {name: reauth-proxy-state, mountPath: /var/lib/reauth-proxy/state}
    - {name: reauth-proxy-events, mountPath: /var/lib/reauth-proxy/events}
{{- end }}

{{/* The source of a volume: another one takes the place of the emptyDir, with which Helm merges it. */}}
{{- define "kafka-reauth-proxy.source" -}}
{{- omit . "emptyDir" | default . | toYaml -}}
{{- end }}

{{- define "kafka-reauth-proxy.volumes" -}}
{{- with .Values.volumes }}
{{- toYaml . }}
{{- end }}
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
  {{- include "kafka-reauth-proxy.source" .Values.state | nindent 2 }}
- name: reauth-proxy-events
  {{- include "kafka-reauth-proxy.source" .Values.events | nindent 2 }}
{{- end }}
