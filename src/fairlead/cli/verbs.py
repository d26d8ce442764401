"""Lists the verbs: `VERBS` is the whole command line, a row each with section, target and one line of help.

Sections say what a person does, those in most use first.
"""

from __future__ import annotations

from typing import Final

from fairlead.cli.core.lazygroup import Verb

_RUN: Final = "Run containers"
_WHY: Final = "Find out why"
_DATA: Final = "Images, volumes, secrets"
_FILES: Final = "Manifests and compose files"
_GPUS: Final = "GPUs"
_PEOPLE: Final = "People and limits"
_MACHINE: Final = "Fairlead on this machine"
_CLUSTER: Final = "Clusters"
_LAYER: Final = "Single layers"

VERBS: Final = {
    "run": Verb(_RUN, "container.start.run:run", "Run a container, follow its output, exit with its code."),
    "ps": Verb(_RUN, "container.ps:ps", "List containers."),
    "logs": Verb(_RUN, "container.logs:logs", "Show what a container wrote."),
    "exec": Verb(_RUN, "access.exec:execute", "Run one more process in a container."),
    "debug": Verb(_RUN, "container.debug:debug", "Join a running container with another one, to look into it."),
    "notebook": Verb(_RUN, "container.session:notebook", "Open a notebook: a container with a page and a kept home."),
    "shell": Verb(_RUN, "container.session:shell", "Open a shell in a container with a kept home."),
    "attach": Verb(
        _RUN, "container.attach:attach", "Give a running container a free GPU; without one join its terminal."
    ),
    "detach": Verb(_RUN, "container.attach:detach", "Take a GPU from a running container."),
    "wait": Verb(_RUN, "container.wait:wait", "Wait for containers and exit with the first code that is not 0."),
    "stop": Verb(_RUN, "container.stop:stop", "Stop containers and keep their records."),
    "kill": Verb(_RUN, "container.signals:kill", "Send a signal to the first process of containers."),
    "update": Verb(_RUN, "container.update:update", "Change the CPU and memory of running containers."),
    "rename": Verb(_RUN, "container.restart:rename", "Give a container that does not run another name."),
    "restart": Verb(_RUN, "container.restart:restart", "Stop containers and start them anew."),
    "start": Verb(_RUN, "container.restart:start", "Start ended containers again."),
    "rm": Verb(_RUN, "container.stop:rm", "Remove containers; -f: running ones too."),
    "inspect": Verb(_RUN, "container.inspect:inspect", "Print all that is known of containers, as JSON."),
    "cp": Verb(_RUN, "access.copy:copy", "Copy files into a container, or out of it."),
    "port": Verb(_RUN, "access.ports:port", "Print the ports of the host that lead into a container."),
    "port-forward": Verb(
        _RUN, "access.forward:port_forward", "Forward ports of this machine to a container's, until Ctrl-C."
    ),
    "open": Verb(_RUN, "access.opening:open_port", "Print the address that opens a container's port in a browser."),
    "stats": Verb(_RUN, "access.stats:stats", "Show what running containers use."),
    "top": Verb(_RUN, "access.stats:top", "List a container's processes; without one: what all use."),
    "prune": Verb(_RUN, "image.prune:prune", "Remove ended containers and images that nothing needs."),
    "import": Verb(_RUN, "container.importing:imported", "Print what runs a container of docker or podman here."),
    "explain": Verb(_WHY, "container.explain:explain", "Say why a container waits, failed or runs where it does."),
    "trace": Verb(_WHY, "container.trace:trace", "Show every step from the silicon to the process."),
    "events": Verb(_WHY, "view.events:events", "List or follow what happened."),
    "status": Verb(_WHY, "view.status:status", "Show how the service is."),
    "doctor": Verb(_WHY, "doctor.local:doctor", "Check every layer and say how to mend it."),
    "image": Verb(_DATA, "image.image:image", "List, fetch, build, import, move and remove images."),
    "volume": Verb(_DATA, "image.volume:group", "List, make and remove named volumes."),
    "secrets": Verb(_DATA, "image.secret:group", "Store values for containers; no command shows them again."),
    "pull": Verb(_DATA, "image.archive:pull", "Fetch images from their registry.", is_hidden=True),
    "tag": Verb(_DATA, "image.archive:tag", "Give an image one more name.", is_hidden=True),
    "save": Verb(_DATA, "image.archive:save", "Write images as an archive.", is_hidden=True),
    "load": Verb(_DATA, "image.archive:load", "Read images from an archive.", is_hidden=True),
    "images": Verb(_DATA, "image.image:list_images", "List images.", is_hidden=True),
    "rmi": Verb(_DATA, "image.image:remove_image", "Remove images by name.", is_hidden=True),
    "secret": Verb(_DATA, "image.secret:group", "Store values for containers.", is_hidden=True),
    "apply": Verb(_FILES, "objects.apply:apply", "Make what manifests say, or bring what is there to it."),
    "get": Verb(_FILES, "objects.get:get", "List objects: pods, deployments, jobs, services, configmaps and more."),
    "delete": Verb(
        _FILES, "objects.apply:delete", "Remove the objects of manifests, or named ones, with what they made."
    ),
    "diff": Verb(
        _FILES, "objects.apply:diff", "Show what `apply` would change; exit with 1 where it would change something."
    ),
    "rollout": Verb(_FILES, "objects.rollout:rollout", "Watch a workload replace its pods, or have it do so."),
    "scale": Verb(_FILES, "objects.rollout:scale", "Set how many pods a Deployment or StatefulSet has."),
    "compose": Verb(_FILES, "container.compose.group:group", "Run Compose files, in docker compose's words."),
    "gpus": Verb(_GPUS, "view.gpus:gpus", "List GPUs, what they do now, and who holds them since when."),
    "capacity": Verb(_GPUS, "view.capacity:capacity", "Say how many devices are free, and what of that fits."),
    "topology": Verb(_GPUS, "view.topology:topology", "Show how GPUs are linked."),
    "nodes": Verb(_GPUS, "view.nodes:nodes", "List nodes, what they have and what is taken."),
    "sharing": Verb(_GPUS, "layer.sharing:sharing", "List who shares which GPU, and by which means."),
    "mig": Verb(_GPUS, "layer.mig:group", "Partition GPUs by files of mig-parted's format."),
    "leases": Verb(_GPUS, "admin.lease:leases", "List every GPU of this machine's ledger."),
    "reserve": Verb(_GPUS, "admin.reserve:group", "Reserve GPUs for a time to come."),
    "lease": Verb(
        _GPUS, "admin.lease:group", "Keep GPUs back from tenants, give them back, and read what happened to them."
    ),
    "usage": Verb(_GPUS, "view.usage:usage", "Say who held GPUs for how long, and what that costs."),
    "tenancy": Verb(_PEOPLE, "admin.tenancy:group", "Keep tenants apart: a namespace, limits and a network for each."),
    "user": Verb(_PEOPLE, "admin.user:group", "Make accounts, and give them roles in tenancies."),
    "key": Verb(_PEOPLE, "admin.keys.key:group", "Make, list, replace and end API keys."),
    "ssh-key": Verb(_PEOPLE, "admin.keys.sshkey:group", "Add, list and remove the SSH keys of accounts."),
    "ssh-config": Verb(
        _PEOPLE, "admin.keys.sshconfig:ssh_config", "Print what ~/.ssh/config needs to enter containers."
    ),
    "quota": Verb(_PEOPLE, "admin.quota:group", "Limit what a namespace's containers ask for together."),
    "budget": Verb(_PEOPLE, "admin.budget:group", "Limit what a tenancy's GPUs cost in a month."),
    "queue": Verb(
        _PEOPLE, "admin.queue:group", "Share GPUs among teams: what each is due, may borrow, and has to give back."
    ),
    "webhook": Verb(_PEOPLE, "admin.webhook:webhook", "Have events sent to an address, signed."),
    "notify": Verb(
        _PEOPLE,
        "admin.notify:notify",
        "Be told what becomes of your containers: by e-mail, in a chat, or at an address.",
    ),
    "audit": Verb(_PEOPLE, "view.audit:audit", "Show who changed what by TLS and who was refused."),
    "login": Verb(_PEOPLE, "admin.login:login", "Keep a service's address and your key for it."),
    "context": Verb(_PEOPLE, "admin.login:contexts_group", "Choose which service verbs go to."),
    "whoami": Verb(_PEOPLE, "admin.whoami:whoami", "Show your account at the service, and what it may do."),
    "up": Verb(_MACHINE, "process.up:up", "Run Fairlead on this machine until Ctrl-C."),
    "down": Verb(_MACHINE, "process.down:down", "Stop and remove all containers, then the service."),
    "service": Verb(_MACHINE, "process.service:group", "Run Fairlead from boot on, as a systemd unit."),
    "state": Verb(_MACHINE, "process.state:group", "Check and repair the state folder, back it up and restore it."),
    "settings": Verb(
        _MACHINE, "admin.settings_verb:settings_verb", "Show the settings in force and where they come from."
    ),
    "simulate": Verb(_MACHINE, "layer.simulate:simulate", "Break simulated GPUs, list faults and profiles."),
    "kubelet": Verb(_MACHINE, "process.kubelet:kubelet", "Play the kubelet's part on one machine.", is_hidden=True),
    "completion": Verb(_MACHINE, "admin.completion:completion", "Print the completion script of a shell."),
    "manifests": Verb(_CLUSTER, "admin.manifests:manifests", "Print the manifests that install Fairlead on a cluster."),
    "agent": Verb(_CLUSTER, "process.agent:agent", "Serve this node's GPUs to a kubelet."),
    "scheduler": Verb(_CLUSTER, "process.scheduler:scheduler", "Bind a cluster's pods that name this scheduler."),
    "controller": Verb(_CLUSTER, "process.controller:controller", "Keep Fairlead's objects in a cluster up to date."),
    "api": Verb(_CLUSTER, "process.listen.api:api", "Serve a cluster's API and console on TLS, to accounts."),
    "withdraw": Verb(_CLUSTER, "admin.withdraw:withdraw", "Remove what agents published in a cluster."),
    "dra": Verb(_CLUSTER, "layer.dra.group:group", "Look at devices and claims of Dynamic Resource Allocation."),
    "cdi": Verb(_LAYER, "layer.cdi.group:group", "Generate, list and validate CDI specs."),
    "runtime": Verb(_LAYER, "layer.runtime:group", "Configure engines for GPUs; links that systemd needs."),
    "isolate": Verb(_LAYER, "layer.isolate:group", "Read, audit and repair what the kernel enforces for containers."),
    "vfio": Verb(_LAYER, "layer.vfio.group:group", "Pass whole GPUs through to virtual machines."),
    "fabric": Verb(_LAYER, "layer.fabric.group:group", "Show and change NVLink partitions."),
}
