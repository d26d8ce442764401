"""Lists the verbs: `VERBS` is the whole command line, a row each with section, target and one line of help."""

from __future__ import annotations

from typing import Final

from fairlead.cli.core.lazygroup import Verb

_RUN, _OBJECTS, _LOOK, _MACHINE = "Containers", "Manifests, in kubectl's words", "Look", "Machine"
_LAYER = "Single layers and this program"

VERBS: Final = {
    "run": Verb(_RUN, "container.run:run", "Run a container, follow its output, exit with its code."),
    "ps": Verb(_RUN, "container.ps:ps", "List containers."),
    "logs": Verb(_RUN, "container.logs:logs", "Show what a container wrote."),
    "exec": Verb(_RUN, "access.exec:execute", "Run one more process in a container."),
    "kill": Verb(_RUN, "container.signals:kill", "Send a signal to the first process of containers."),
    "restart": Verb(_RUN, "container.restart:restart", "Stop containers and start them anew."),
    "start": Verb(_RUN, "container.restart:start", "Start ended containers again."),
    "cp": Verb(_RUN, "access.copy:copy", "Copy files into a container, or out of it."),
    "stats": Verb(_RUN, "access.stats:stats", "Show what running containers use."),
    "top": Verb(_RUN, "access.stats:top", "List a container's processes; without one: what all use."),
    "port": Verb(_RUN, "access.ports:port", "Print the ports of the host that lead into a container."),
    "port-forward": Verb(
        _RUN, "access.forward:port_forward", "Forward ports of this machine to a container's, until Ctrl-C."
    ),
    "prune": Verb(_RUN, "image.prune:prune", "Remove ended containers and images that nothing needs."),
    "pull": Verb(_RUN, "image.archive:pull", "Fetch images from their registry.", is_hidden=True),
    "tag": Verb(_RUN, "image.archive:tag", "Give an image one more name.", is_hidden=True),
    "save": Verb(_RUN, "image.archive:save", "Write images as an archive.", is_hidden=True),
    "load": Verb(_RUN, "image.archive:load", "Read images from an archive.", is_hidden=True),
    "stop": Verb(_RUN, "container.stop:stop", "Stop containers and keep their records."),
    "rm": Verb(_RUN, "container.stop:rm", "Remove containers; -f: running ones too."),
    "wait": Verb(_RUN, "container.wait:wait", "Wait for containers and exit with the first code that is not 0."),
    "attach": Verb(
        _RUN, "container.attach:attach", "Give a running container a free GPU; without one join its terminal."
    ),
    "detach": Verb(_RUN, "container.attach:detach", "Take a GPU from a running container."),
    "trace": Verb(_RUN, "container.trace:trace", "Show every step from the silicon to the process."),
    "explain": Verb(_RUN, "container.explain:explain", "Say why a container waits, failed or runs where it does."),
    "image": Verb(_RUN, "image.image:image", "List, fetch, build, import, move and remove images."),
    "volume": Verb(_RUN, "image.volume:group", "List, make and remove named volumes."),
    "secrets": Verb(_RUN, "image.secret:group", "Store values for containers; no command shows them again."),
    "secret": Verb(_RUN, "image.secret:group", "Store values for containers.", is_hidden=True),
    "inspect": Verb(_RUN, "container.inspect:inspect", "Print all that is known of containers, as JSON."),
    "import": Verb(_RUN, "container.importing:imported", "Print what runs a container of docker or podman here."),
    "images": Verb(_RUN, "image.image:list_images", "List images.", is_hidden=True),
    "rmi": Verb(_RUN, "image.image:remove_image", "Remove images by name.", is_hidden=True),
    "compose": Verb(_RUN, "container.compose.group:group", "Run Compose files, in docker compose's words."),
    "apply": Verb(_OBJECTS, "objects.apply:apply", "Make what manifests say, or bring what is there to it."),
    "get": Verb(_OBJECTS, "objects.get:get", "List objects: pods, deployments, jobs, services, configmaps and more."),
    "delete": Verb(
        _OBJECTS, "objects.apply:delete", "Remove the objects of manifests, or named ones, with what they made."
    ),
    "diff": Verb(
        _OBJECTS, "objects.apply:diff", "Show what `apply` would change; exit with 1 where it would change something."
    ),
    "rollout": Verb(_OBJECTS, "objects.rollout:rollout", "Watch a workload replace its pods, or have it do so."),
    "scale": Verb(_OBJECTS, "objects.rollout:scale", "Set how many pods a Deployment or StatefulSet has."),
    "gpus": Verb(_LOOK, "view.gpus:gpus", "List GPUs, what they do now, and who holds them since when."),
    "sharing": Verb(_LOOK, "layer.sharing:sharing", "List who shares which GPU, and by which means."),
    "leases": Verb(_LOOK, "admin.lease:leases", "List every GPU of this machine's ledger."),
    "usage": Verb(_LOOK, "view.usage:usage", "Say who held GPUs for how long, and what that costs."),
    "topology": Verb(_LOOK, "view.topology:topology", "Show how GPUs are linked."),
    "nodes": Verb(_LOOK, "view.nodes:nodes", "List nodes, what they have and what is taken."),
    "capacity": Verb(_LOOK, "view.capacity:capacity", "Say how many devices are free, and what of that fits."),
    "events": Verb(_LOOK, "view.events:events", "List or follow what happened."),
    "audit": Verb(_LOOK, "view.audit:audit", "Show who changed what by TLS and who was refused."),
    "status": Verb(_LOOK, "view.status:status", "Show how the service is."),
    "quota": Verb(_MACHINE, "admin.quota:group", "Limit what a namespace's containers ask for together."),
    "tenancy": Verb(_MACHINE, "admin.tenancy:group", "Keep tenants apart: a namespace, limits and a network for each."),
    "budget": Verb(_MACHINE, "admin.budget:group", "Limit what a tenancy's GPUs cost in a month."),
    "user": Verb(_MACHINE, "admin.user:group", "Make accounts, and give them roles in tenancies."),
    "key": Verb(_MACHINE, "admin.key:group", "Make, list, replace and end API keys."),
    "webhook": Verb(_MACHINE, "admin.webhook:webhook", "Have events sent to an address, signed."),
    "login": Verb(_MACHINE, "admin.login:login", "Keep a service's address and your key for it."),
    "context": Verb(_MACHINE, "admin.login:contexts_group", "Choose which service verbs go to."),
    "whoami": Verb(_MACHINE, "admin.whoami:whoami", "Show your account at the service, and what it may do."),
    "queue": Verb(
        _MACHINE, "admin.queue:group", "Share GPUs among teams: what each is due, may borrow, and has to give back."
    ),
    "lease": Verb(
        _MACHINE, "admin.lease:group", "Keep GPUs back from tenants, give them back, and read what happened to them."
    ),
    "up": Verb(_MACHINE, "process.up:up", "Run Fairlead on this machine until Ctrl-C."),
    "down": Verb(_MACHINE, "process.down:down", "Stop and remove all containers, then the service."),
    "service": Verb(_MACHINE, "process.service:group", "Run Fairlead from boot on, as a systemd unit."),
    "state": Verb(_MACHINE, "process.state:group", "Check and repair the state folder."),
    "agent": Verb(_MACHINE, "process.agent:agent", "Serve this node's GPUs to a kubelet."),
    "manifests": Verb(_MACHINE, "admin.manifests:manifests", "Print the manifests that install Fairlead on a cluster."),
    "scheduler": Verb(_MACHINE, "process.scheduler:scheduler", "Bind a cluster's pods that name this scheduler."),
    "controller": Verb(_MACHINE, "process.controller:controller", "Keep Fairlead's objects in a cluster up to date."),
    "api": Verb(_MACHINE, "process.listen.api:api", "Serve a cluster's API and console on TLS, to accounts."),
    "withdraw": Verb(_MACHINE, "admin.withdraw:withdraw", "Remove what agents published in a cluster."),
    "doctor": Verb(_MACHINE, "doctor.local:doctor", "Check every layer and say how to mend it."),
    "simulate": Verb(_MACHINE, "layer.simulate:simulate", "Break simulated GPUs, list faults and profiles."),
    "kubelet": Verb(_MACHINE, "process.kubelet:kubelet", "Play the kubelet's part on one machine.", is_hidden=True),
    "runtime": Verb(_LAYER, "layer.runtime:group", "Configure engines for GPUs; links that systemd needs."),
    "isolate": Verb(_LAYER, "layer.isolate:group", "Read, audit and repair what the kernel enforces for containers."),
    "cdi": Verb(_LAYER, "layer.cdi.group:group", "Generate, list and validate CDI specs."),
    "dra": Verb(_LAYER, "layer.dra.group:group", "Look at devices and claims of Dynamic Resource Allocation."),
    "vfio": Verb(_LAYER, "layer.vfio.group:group", "Pass whole GPUs through to virtual machines."),
    "fabric": Verb(_LAYER, "layer.fabric.group:group", "Show and change NVLink partitions."),
    "mig": Verb(_LAYER, "layer.mig:group", "Partition GPUs by files of mig-parted's format."),
    "settings": Verb(
        _LAYER, "admin.settings_verb:settings_verb", "Show the settings in force and where they come from."
    ),
    "completion": Verb(_LAYER, "admin.completion:completion", "Print the completion script of a shell."),
}
