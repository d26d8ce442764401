{{- define "fairlead.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- /* Labels that never change: a selector cannot. Call with (dict "root" $ "component" "agent"). */ -}}
{{- define "fairlead.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "fairlead.labels" -}}
{{ include "fairlead.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fairlead
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "fairlead.image" -}}
{{- if .Values.image.digest -}}
{{ printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else -}}
{{ printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end -}}
{{- end -}}

{{- /* Environment of every component. */ -}}
{{- define "fairlead.env" -}}
- name: FAIRLEAD_LOG_LEVEL
  value: {{ .Values.log.level }}
- name: FAIRLEAD_LOG_FORMAT
  value: {{ .Values.log.format }}
- name: FAIRLEAD_CLUSTER_MONITOR
  value: {{ printf "%s:%s" .Values.monitor.host (.Values.monitor.port | toJson) | quote }}
- name: FAIRLEAD_CLUSTER_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- end -}}

{{- define "fairlead.ports" -}}
ports:
  - name: monitor
    containerPort: {{ .Values.monitor.port }}
{{- end -}}

{{- define "fairlead.probes" -}}
livenessProbe:
  httpGet:
    path: /healthz
    port: monitor
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
startupProbe:
  httpGet:
    path: /healthz
    port: monitor
  periodSeconds: 1
  timeoutSeconds: 5
  failureThreshold: 120
readinessProbe:
  httpGet:
    path: /readyz
    port: monitor
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- /* Components that schedule, as a JSON list: `scheduler`, and one `scheduler-POOL` for each pool. */ -}}
{{- define "fairlead.schedulers" -}}
{{- $found := list "scheduler" -}}
{{- range .Values.scheduler.sharding.pools -}}
{{- $found = append $found (printf "scheduler-%s" .) -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}

{{- /* Leases of a component, as a JSON list. Call with (dict "root" $ "component" "scheduler"). */ -}}
{{- define "fairlead.leases" -}}
{{- if eq .component "scheduler" -}}
{{- include "fairlead.schedulers" .root -}}
{{- else -}}
{{- toJson (list .component) -}}
{{- end -}}
{{- end -}}

{{- /* A leader-elected Deployment. Call with (dict "root" $ "component" "scheduler" "values" .Values.scheduler "env" list);
"process" is the verb and the account, where the component is named otherwise. */ -}}
{{- define "fairlead.deployment" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "fairlead.fullname" .root }}-{{ .component }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "fairlead.labels" . | nindent 4 }}
spec:
  replicas: {{ .values.replicas }}
  selector:
    matchLabels:
      {{- include "fairlead.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "fairlead.labels" . | nindent 8 }}
        {{- with .values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with .values.podAnnotations }}
      annotations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
    spec:
      serviceAccountName: {{ include "fairlead.fullname" .root }}-{{ default .component .process }}
      automountServiceAccountToken: true
      {{- /* A Service called fairlead would bring FAIRLEAD_* variables, and unknown ones end the program. */}}
      enableServiceLinks: false
      priorityClassName: {{ .values.priorityClassName | quote }}
      {{- with .root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        seccompProfile:
          type: RuntimeDefault
      {{- with .values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      affinity:
      {{- if .values.affinity }}
        {{- toYaml .values.affinity | nindent 8 }}
      {{- else }}
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels:
                    {{- include "fairlead.selector" . | nindent 20 }}
      {{- end }}
      containers:
        - name: {{ .component }}
          image: {{ include "fairlead.image" .root | quote }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args:
            - {{ default .component .process }}
          env:
            {{- include "fairlead.env" .root | nindent 12 }}
            {{- with .env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- with .values.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- include "fairlead.ports" .root | nindent 10 }}
          {{- include "fairlead.probes" .root | nindent 10 }}
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities:
              drop:
                - ALL
          volumeMounts:
            - name: tmp
              mountPath: /tmp
      volumes:
        - name: tmp
          {{- include "fairlead.tmp" .root | nindent 10 }}
{{- end -}}

{{- /* The only place that a component may write to, beside the agent's folders. */}}
{{- define "fairlead.tmp" -}}
emptyDir:
  medium: Memory
  sizeLimit: 16Mi
{{- end -}}

{{- /* What helm makes after everything else was removed, and removes once it succeeded. Call with its weight. */}}
{{- define "fairlead.hook" -}}
helm.sh/hook: post-delete
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- /* A map as one text, `94=reset,95=reboot`. */}}
{{- define "fairlead.pairs" -}}
{{- $found := list }}
{{- range $name, $value := . }}{{ $found = append $found (printf "%s=%s" $name $value) }}{{ end }}
{{- join "," $found }}
{{- end -}}

{{- /* Affinity to nodes that are known to have GPUs, as a pod's spec has it; nothing where it may be any node. */}}
{{- define "fairlead.gpuNodes" -}}
{{- if .Values.agent.affinity }}
affinity:
  {{- toYaml .Values.agent.affinity | nindent 2 }}
{{- else if and .Values.agent.gpuNodes (not .Values.silicon.simulate) }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range .Values.agent.gpuNodes }}
        - matchExpressions:
            {{- toYaml (list .) | nindent 12 }}
        {{- end }}
{{- end }}
{{- end -}}

{{- /* Refuses paths of a node's own machine that its container would not see. Call with its values and their name. */}}
{{- define "fairlead.ownMachine" -}}
{{- $values := .values }}
{{- $named := .named }}
{{- if $values.folder }}
{{- $below := printf "%s/" (trimSuffix "/" $values.folder) }}
{{- range $name := list "image" "emulator" "firmware" }}
{{- $path := get $values $name }}
{{- if and (not $path) (ne $name "firmware") }}
{{- fail (printf "%s.folder is given, and %s.%s is empty: the machine needs an image and a QEMU" $named $named $name) }}
{{- end }}
{{- if and $path (not (hasPrefix $below $path)) }}
{{- fail (printf "%s.%s %s is not in %s.folder %s: the container sees no other folder of the node" $named $name $path $named $values.folder) }}
{{- end }}
{{- end }}
{{- else if or $values.image $values.emulator $values.firmware }}
{{- fail (printf "%s.folder is empty, and image, emulator or firmware is given: the chart's image has neither QEMU nor a machine's image; name the nodes' folder that has both" $named) }}
{{- end }}
{{- end }}

{{- /* Refuses values of the Service VM that would have no effect, or keep it from its agent. */}}
{{- define "fairlead.fabricMachine" -}}
{{- include "fairlead.ownMachine" (dict "values" .Values.fabric.machine "named" "fabric.machine") }}
{{- if .Values.fabric.machine.folder }}
{{- if not .Values.fabric.machine.secretName }}
{{- fail "fabric.machine.folder is given, and fabric.machine.secretName is empty: agent and machine prove to each other that they have one secret; make it by `kubectl create secret generic NAME --from-literal=fabric.secret=$(head -c 32 /dev/urandom | base64)`" }}
{{- end }}
{{- if or .Values.silicon.simulate (not .Values.agent.enabled) (not .Values.agent.privileged) }}
{{- fail "fabric.machine needs agent.enabled=true, agent.privileged=true and real silicon: the agent switches partitions through it, by vsock" }}
{{- end }}
{{- range $key := list "fabric.vm_image" "fabric.vm_namespace" "fabric.secret" "fabric.agent" }}
{{- if hasKey $.Values.agent.settings $key }}
{{- fail (printf "fabric.machine and agent.settings %s are both given: one machine has the NVSwitches, and fabric.machine says which, its secret and its address" $key) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The resource of NVSwitches that are passed through: NVIDIA's name, or what the agents' settings say. */}}
{{- define "fairlead.switches" -}}
{{- $alias := get .Values.agent.settings "node.vfio_switch_alias" | default "nvswitch" | toString }}
{{- if not (and (regexMatch "^[A-Za-z]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $alias) (contains "nvswitch" (lower $alias))) }}
{{- fail (printf "agent.settings node.vfio_switch_alias %q is no name of a resource with nvswitch in it: no agent would start with it; for example nvswitch-h100" $alias) }}
{{- end -}}
nvidia.com/{{ $alias }}
{{- end -}}

{{- /* "true" where the agent must see the node's processes: the Service VM's context id is on its emulator's command line. */}}
{{- define "fairlead.hostPID" -}}
{{- $settings := .Values.agent.settings }}
{{- $seeks := or (get $settings "fabric.vm_image") (hasPrefix "nvswitch:" (toString (get $settings "fabric.agent"))) }}
{{- if or .Values.trace.readBack .Values.fabric.machine.folder $seeks }}true{{ end }}
{{- end -}}

{{- /* Refuses values of the verifier's machine that would have no effect, or end the agent. */}}
{{- define "fairlead.verifier" -}}
{{- $verifier := .Values.agent.verifier }}
{{- include "fairlead.ownMachine" (dict "values" $verifier "named" "agent.verifier") }}
{{- if $verifier.folder }}
{{- if or .Values.silicon.simulate (not .Values.agent.privileged) }}
{{- fail "agent.verifier needs agent.privileged=true and real silicon: its machine opens /dev/vfio and /dev/kvm" }}
{{- end }}
{{- if eq (toString (dig "limits" "memory" "" .Values.agent.resources)) "256Mi" }}
{{- fail (printf "agent.verifier: its machine has %v MiB, and agent.resources.limits.memory is 256Mi: set it to more than both together" $verifier.memoryMiB) }}
{{- end }}
{{- $keys := keys .Values.agent.settings | join " " }}
{{- if contains "lease.verifier_" $keys }}
{{- fail "agent.verifier and agent.settings lease.verifier_* are both given: give the one or the other" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The volume with what agent and Service VM share, which its readers refuse where others may read it. */}}
{{- define "fairlead.fabricSecret" -}}
secret:
  secretName: {{ .Values.fabric.machine.secretName | quote }}
  defaultMode: 0400
  items:
    - key: fabric.secret
      path: fabric.secret
{{- end -}}
