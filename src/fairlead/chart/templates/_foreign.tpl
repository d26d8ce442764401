{{- /* Values of NVIDIA's charts (device plugin, GPU operator) that mean nothing here as they are, and what to write in their place. False and empty ones are let pass: they ask for nothing. Those with a meaning are read in `fairlead.values`. */ -}}
{{- define "fairlead.answers" -}}
affinity: set agent.affinity
allowDefaultNamespace: helm installs where -n says; leave it out
ccManager.enabled: confidential computing is not managed; leave it out
daemonsets.annotations: set agent.podAnnotations
daemonsets.labels: set agent.podLabels
daemonsets.priorityClassName: set agent.priorityClassName
daemonsets.tolerations: set agent.tolerations
daemonsets.updateStrategy: set agent.updateStrategy
dcgm.enabled: no DCGM runs beside the agent, which reads NVML itself; set dcgm.enabled=false
driver.enabled: Fairlead installs no driver; install it on the nodes, or by NVIDIA's operator, and set driver.enabled=false
gdrcopy.enabled: Fairlead installs no driver of GDRCopy; gdrcopyEnabled gives containers the device that a node has
gds.enabled: Fairlead installs no driver of GPUDirect Storage; gdsEnabled gives containers the devices that a node has
hostPaths.driverInstallDir: set silicon.driverRoot
kataManager.enabled: Kata runtimes are not managed; `fairlead runtime configure` writes their handlers
legacyDaemonsetAPI: no cluster that is supported has it; leave it out
migManager.env: set agent.env
nameOverride: set fullnameOverride
namespaceOverride: helm installs where -n says; leave it out
nfd.enabled: no node feature discovery is installed; the agent labels its Node itself, or hands labels to yours by labels.way; set nfd.enabled=false
nodeSelector: set agent.nodeSelector
podAnnotations: set agent.podAnnotations
podSecurityContext: set agent.privileged
priorityClassName: set agent.priorityClassName
resources: set agent.resources
runtimeClassName: set agent.runtimeClassName
sandboxWorkloads.enabled: GPUs for virtual machines are not managed; leave it out
securityContext: set agent.privileged
selectorLabelsOverride: the chart's own selector cannot change; leave it out
toolkit.enabled: nodes' engines are configured by `fairlead runtime configure`, and with CDI need nothing; set toolkit.enabled=false
tolerations: set agent.tolerations
updateStrategy: set agent.updateStrategy
vfioManager.enabled: GPUs for virtual machines are not managed; leave it out
vgpuDeviceManager.enabled: vGPUs are not made here; leave it out
vgpuManager.enabled: vGPUs are not made here; leave it out
{{- end -}}

{{- /* Fails with every such value at once. */ -}}
{{- define "fairlead.foreign" -}}
{{- $found := list }}
{{- $values := fromYaml (toYaml .Values) }}
{{- range $path, $answer := fromYaml (include "fairlead.answers" .) }}
{{- $value := $values }}
{{- range splitList "." $path }}
{{- $value = kindIs "map" $value | ternary (get (kindIs "map" $value | ternary $value dict) .) "" }}
{{- end }}
{{- if $value }}{{ $found = append $found (printf "%s: %s" $path $answer) }}{{ end }}
{{- end }}
{{- if eq (dig "devicePlugin" "enabled" true $values) false }}
{{- $found = append $found "devicePlugin.enabled: the agent is the device plugin; set agent.enabled=false to leave it out whole" }}
{{- end }}
{{- if not (has (dig "deviceDiscoveryStrategy" "" $values) (list "" "auto" "nvml" "tegra")) }}
{{- $found = append $found "deviceDiscoveryStrategy: auto, nvml or tegra; GPUs for virtual machines are not managed" }}
{{- end }}
{{- if $found }}{{ fail (printf "\n  %s" (join "\n  " $found)) }}{{ end }}
{{- end -}}

{{- /* Our values with what NVIDIA's names say put in their places, as YAML. Ours win where both are given. */ -}}
{{- define "fairlead.values" -}}
{{- $all := fromYaml (toYaml .Values) }}
{{- $config := dig "devicePlugin" "config" dict $all }}
{{- $mig := dig "migManager" "config" dict $all }}
passDeviceSpecs: {{ or $all.passDeviceSpecs (dig "compatWithCPUManager" false $all) }}
migStrategy: {{ $all.migStrategy | default (dig "mig" "strategy" "" $all) | quote }}
driverRoot: {{ ne $all.silicon.driverRoot "/" | ternary $all.silicon.driverRoot (dig "nvidiaDriverRoot" "/" $all) | quote }}
devRoot: {{ $all.silicon.devRoot | default (dig "nvidiaDevRoot" "" $all) | quote }}
discovery: {{ dig "deviceDiscoveryStrategy" "" $all | quote }}
noTimestamp: {{ or $all.labels.noTimestamp (dig "gfd" "noTimestamp" false $all) }}
mpsRoot: {{ dig "mps" "root" "" $all | default (dig "devicePlugin" "mps" "root" "" $all) | quote }}
counters: {{ $all.metrics.counters | default (dig "dcgmExporter" "config" "name" "" $all) | quote }}
servesMetrics: {{ and $all.metrics.enabled (dig "dcgmExporter" "enabled" true $all) }}
configName: {{ $all.config.name | default (get $config "name") | quote }}
configDefault: {{ $all.config.default | default (get $config "default") | quote }}
configMap: {{ $all.config.map | default (get $config "data" | default dict) | toJson }}
migConfigMap: {{ $all.mig.configMap | default (get $mig "name") | quote }}
migConfig: {{ $all.mig.config | default (get $mig "default") | quote }}
{{- end -}}
