"""Small texts of our own, one a format, that read without a gap."""

from __future__ import annotations

from reconciler.discovery.parsed import Kind

_NVIDIA = """\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\tPIX\tSYS\t0-7\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPIX\t8-15\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPIX\tSYS\t X \t\t\t\t

Legend:
  PIX  = one bridge
  NV#  = NVLinks

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
"""

_NUMACTL = """\
available: 3 nodes (0-2)
node 0 cpus: 0 1 2 3
node 0 size: 1000 MB
node 0 free: 900 MB
node 1 cpus: 4 5
node 1 size: 0 MB
node 1 free: 0 MB
node 2 cpus:
node 2 size: 500 MB
node 2 free: 400 MB
node distances:
node   0   1   2
  0:  10  21  30
  1:  21  10  30
  2:  30  30  10
"""

_NCCL = """\
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:01:00.0" class="0x060400">
      <pci busid="0000:02:00.0" class="0x030200">
        <gpu dev="0" sm="90" rank="0"><nvlink target="0000:0a:00.0" count="18" tclass="0x068000"/></gpu>
      </pci>
      <pci busid="0000:03:00.0" class="0x020700">
        <nic><net name="mlx5_0" port="1" speed="400000" gdr="1"/></nic>
      </pci>
    </pci>
    <pci busid="0000:04:00.0" class="0x030200">
      <gpu dev="1" sm="90" rank="1"><nvlink target="0000:0a:00.0" count="18" tclass="0x068000"/></gpu>
    </pci>
  </cpu>
</system>
"""

_ROCM = """\
=========== ROCm System Management Interface ===========
=========== Weight between two GPUs ===========
       GPU0   GPU1
GPU0   0      15
GPU1   15     0
=========== Hops between two GPUs ===========
       GPU0   GPU1
GPU0   0      1
GPU1   1      0
=========== Link Type between two GPUs ===========
       GPU0   GPU1
GPU0   0      XGMI
GPU1   XGMI   0
=========== Numa Nodes ===========
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[1]\t\t: (Topology) Numa Node: 1
"""

_LLDP = """\
{"lldp": {"interface": [
  {"eth0": {"chassis": {"leaf1": {"id": {"type": "mac", "value": "00:00:5e:00:53:01"}}},
            "port": {"id": {"type": "ifname", "value": "swp1"}, "descr": "one"}}},
  {"eth1": {"chassis": {"leaf2": {"id": {"type": "mac", "value": "00:00:5e:00:53:02"}}},
            "port": {"id": {"type": "mac", "value": "00:00:5e:00:53:03"}, "descr": "swp2"}}}]}}
"""

_IBNETDISCOVER = """\
switchguid=0xa1(a1)
Switch\t41 "S-00000000000000a1"\t\t# "MF0;leaf1:MQM8700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-00000000000000b1"[1](b1) \t\t# "node1 mlx5_0" lid 2 4xHDR
[2]\t"S-00000000000000a9"[1]\t\t# "spine1" lid 9 4xHDR

Switch\t41 "S-00000000000000a9"\t\t# "spine1" base port 0 lid 9 lmc 0
[1]\t"S-00000000000000a1"[2]\t\t# "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
"""

_TOPOLOGY_CONF = """\
SwitchName=leaf1 Nodes=n[1-2]
switchname=leaf2 \\
  NODES="n[3-4]" # two more
SwitchName=top Switches=leaf[1,2]
"""

_TOPOLOGY_YAML = """\
- topology: fat
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: leaf[1-2]
      - switch: leaf1
        nodes: n[1-2]
      - switch: leaf2
        nodes: n[3-4]
- topology: racks
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b1
        nodes: n[1-2]
      - block: b2
        nodes: n[3-4]
- topology: plain
  flat: true
"""

_GRES = """\
AutoDetect=nvml
NodeName=n[1-2] Name=gpu Type=h100 File=/dev/nvidia[0-3] Cores=0-7,16-23 Flags=nvidia_gpu_env
Name=shard Count=2K
"""

_NODES = """\
ClusterName=lab
NodeName=DEFAULT RealMemory=1000 State=UNKNOWN
NodeName=n[1-2] Sockets=2 CoresPerSocket=8 ThreadsPerCore=2 Gres=gpu:h100:8(S:0-1),shard:32
NodeName=n3 CPUs=4 RealMemory=500
PartitionName=all Nodes=ALL Default=YES MaxTime=1-12
"""

SAMPLES = {
    Kind.NVIDIA_TOPO: _NVIDIA,
    Kind.NUMACTL: _NUMACTL,
    Kind.NCCL_XML: _NCCL,
    Kind.ROCM_TOPO: _ROCM,
    Kind.LLDP: _LLDP,
    Kind.IBNETDISCOVER: _IBNETDISCOVER,
    Kind.SLURM_TOPOLOGY: _TOPOLOGY_CONF,
    Kind.SLURM_TOPOLOGY_YAML: _TOPOLOGY_YAML,
    Kind.SLURM_GRES: _GRES,
    Kind.SLURM_NODES: _NODES,
    Kind.HOSTLIST: "gpu-[001-003],login # comment\nn1[8-11]\n",
}
