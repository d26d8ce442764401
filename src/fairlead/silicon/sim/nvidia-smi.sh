#!/bin/sh
# Stand-in for nvidia-smi on simulated silicon. POSIX sh and its builtins only.
# It lists the GPUs whose device node the kernel lets this process open, numbered from 0. No driver stands behind the
# nodes: an allowed open fails with "No such device or address", a denied one with another error.
LC_ALL=C
export LC_ALL
set -f

driver=@DRIVER@
cuda=@CUDA@

table() {
	:
@TABLE@
}

may_open() {
	[ -e "$1" ] || return 1
	why=$( { : < "$1"; } 2>&1 ) && return 0
	case $why in
	*'No such device or address'*) return 0 ;;
	esac
	return 1
}

# gpu MINOR UUID NAME MEMORY_MIB BUS_ID SERIAL CAPABILITY MIG_MODE
gpu() {
	here=
	migs=0
	may_open "/dev/nvidia$1" || return 0
	case ,$only, in
	,,) ;;
	*",$count,"* | *",$2,"* | *",$5,"*) ;;
	*)
		count=$((count + 1))
		return 0
		;;
	esac
	here=yes
	shown=$((shown + 1))
	minor=$1 uuid=$2 name=$3 memory=$4 bus=$5 serial=$6 capability=$7 mode=$8
	"gpu_$view"
	count=$((count + 1))
}

# mig PROFILE UUID MEMORY_MIB GPU_INSTANCE_CAP COMPUTE_INSTANCE_CAP
mig() {
	[ -n "$here" ] || return 0
	may_open "/dev/nvidia-caps/nvidia-cap$4" || return 0
	may_open "/dev/nvidia-caps/nvidia-cap$5" || return 0
	profile=$1 mig_uuid=$2 mig_memory=$3
	"mig_$view"
	migs=$((migs + 1))
}

gpu_list() { printf 'GPU %s: %s (UUID: %s)\n' "$count" "$name" "$uuid"; }
mig_list() { printf '  MIG %-15s Device %2s: (UUID: %s)\n' "$profile" "$migs" "$mig_uuid"; }

rule='+-----+--------------------------------+------------------+----------------------+'
gpu_table() {
	printf '| %3s | %-30s | %-16s | %9s / %8s |\n' "$count" "$name" "$bus" 4MiB "${memory}MiB"
}
mig_table() {
	printf '| %3s |   %-28s | %-16s | %9s / %8s |\n' "" "MIG $migs: $profile" "" 0MiB "${mig_memory}MiB"
}

field() {
	case $1 in
	index) value=$count ;;
	uuid | gpu_uuid) value=$uuid ;;
	name | gpu_name) value=$name ;;
	memory.total) value="$memory$mib" ;;
	memory.used) value="4$mib" ;;
	memory.free) value="$((memory - 4))$mib" ;;
	pci.bus_id | gpu_bus_id) value=$bus ;;
	driver_version) value=$driver ;;
	serial | gpu_serial) value=$serial ;;
	compute_cap) value=$capability ;;
	mig.mode.current) value=$mode ;;
	*) return 1 ;;
	esac
}
title() {
	case $1 in
	memory.*) [ -n "$mib" ] && value="$1 [MiB]" || value=$1 ;;
	*) value=$1 ;;
	esac
}
gpu_query() {
	line=
	for item in $fields; do
		field "$item"
		line="$line${line:+, }$value"
	done
	printf '%s\n' "$line"
}
mig_query() { :; }

usage() {
	printf '%s\n' \
		'nvidia-smi: SIMULATED stand-in by Fairlead' \
		'  (no option)                   table of the GPUs this container may open' \
		'  -L, --list-gpus               one line a GPU and MIG device, with UUIDs' \
		'  --query-gpu=FIELD[,FIELD...]  values, with --format=csv[,noheader][,nounits]' \
		'  -i, --id=GPU[,GPU...]         only these, by index, UUID or bus id' \
		'  --version, -h, --help' \
		'fields: index uuid name memory.total memory.used memory.free pci.bus_id driver_version serial' \
		'        compute_cap mig.mode.current'
}
refuse() {
	printf '%s\n' "$1" "Run 'nvidia-smi -h' for what the stand-in offers." >&2
	exit 2
}

view=table fields= format= only= header=yes mib=' MiB'
while [ $# -gt 0 ]; do
	case $1 in
	-L | --list-gpus) view=list ;;
	-h | --help)
		usage
		exit 0
		;;
	--version)
		printf '%s\n' "nvidia-smi: SIMULATED stand-in by Fairlead" "driver: $driver" "CUDA: $cuda"
		exit 0
		;;
	--query-gpu=*) view=query fields=${1#*=} ;;
	--format=*) format=${1#*=} ;;
	--id=*) only=${1#*=} ;;
	-i)
		[ $# -gt 1 ] || refuse 'Option -i needs a GPU.'
		only=$2
		shift
		;;
	*) refuse "Option $1 is not recognized." ;;
	esac
	shift
done

IFS=', '
if [ "$view" = query ]; then
	[ -n "$format" ] || refuse 'Option --query-gpu needs --format=csv.'
	for item in $format; do
		case $item in
		csv) ;;
		noheader) header= ;;
		nounits) mib= ;;
		*) refuse "Format $item is not recognized." ;;
		esac
	done
	count=0 memory=4 uuid= name= bus= serial= capability= mode= line=
	for item in $fields; do
		field "$item" || refuse "Field \"$item\" is not a valid field to query."
		title "$item"
		line="$line${line:+, }$value"
	done
elif [ -n "$format" ]; then
	refuse 'Option --format needs --query-gpu.'
fi

if ! may_open /dev/nvidiactl; then
	printf '%s\n' 'SIMULATED nvidia-smi: no driver to speak to: /dev/nvidiactl is not open to this container.' >&2
	exit 9
fi

count=0 shown=0 here= migs=0
case $view in
table)
	printf '%s\n' "${rule}"
	printf '| %-78s |\n' "SIMULATED by Fairlead: no GPU and no driver stand behind this output"
	printf '| %-78s |\n' "nvidia-smi (stand-in)    Driver Version: $driver    CUDA Version: $cuda"
	printf '%s\n' "$rule"
	printf '| %3s | %-30s | %-16s | %-20s |\n' GPU Name Bus-Id Memory-Usage
	printf '%s\n' "$rule"
	;;
query) [ -z "$header" ] || printf '%s\n' "$line" ;;
esac
table
[ "$view" != table ] || printf '%s\n' "$rule"
if [ "$shown" -eq 0 ]; then
	printf '%s\n' 'No devices were found'
	exit 6
fi
exit 0
