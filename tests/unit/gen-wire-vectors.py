#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause
"""Makes wire-vectors.h: RoCEv2 packets built by scapy's contrib.roce, ICRC included.

Run it by hand (it needs python3-scapy) as: gen-wire-vectors.py > wire-vectors.h
The scapy of Debian 12 computes no ICRC over IPv6; such packets come from a capture of the kernel's
rxe instead: gen-wire-vectors.py CAPTURE... adds a packet of each opcode and IP version there is.
"""
import random
import struct
import sys

from scapy.all import IP, UDP, Raw, rdpcap, raw
from scapy.contrib.roce import BTH
from scapy.layers.inet6 import IPv6

RC, UC, UD = 0x00, 0x20, 0x60
# name, operation, headers in order
OPS = [
    ("SEND_FIRST", 0x00, ""), ("SEND_MIDDLE", 0x01, ""), ("SEND_LAST", 0x02, ""),
    ("SEND_LAST_IMM", 0x03, "imm"), ("SEND_ONLY", 0x04, ""), ("SEND_ONLY_IMM", 0x05, "imm"),
    ("WRITE_FIRST", 0x06, "reth"), ("WRITE_MIDDLE", 0x07, ""), ("WRITE_LAST", 0x08, ""),
    ("WRITE_LAST_IMM", 0x09, "imm"), ("WRITE_ONLY", 0x0a, "reth"),
    ("WRITE_ONLY_IMM", 0x0b, "reth imm"), ("READ_REQUEST", 0x0c, "reth"),
    ("READ_RESPONSE_FIRST", 0x0d, "aeth"), ("READ_RESPONSE_MIDDLE", 0x0e, ""),
    ("READ_RESPONSE_LAST", 0x0f, "aeth"), ("READ_RESPONSE_ONLY", 0x10, "aeth"),
    ("ACKNOWLEDGE", 0x11, "aeth"), ("ATOMIC_ACKNOWLEDGE", 0x12, "aeth orig"),
    ("COMPARE_SWAP", 0x13, "atomic"), ("FETCH_ADD", 0x14, "atomic"),
    ("SEND_LAST_INV", 0x16, "inv"), ("SEND_ONLY_INV", 0x17, "inv"),
]
NO_PAYLOAD = {0x0c, 0x11, 0x12, 0x13, 0x14}

rnd = random.Random(4791)


def headers(kinds):
    """Returns the bytes of the extended headers and their C initialisers."""
    data, init = b"", []
    for kind in kinds.split():
        a, b, c = (rnd.getrandbits(n) for n in (64, 64, 64))
        k, n = rnd.getrandbits(32), rnd.getrandbits(24)
        if kind == "reth":
            data += struct.pack("!QII", a, k, b & 0x7fffffff)
            init.append(".reth = {0x%xu, 0x%xu, 0x%xu}" % (a, k, b & 0x7fffffff))
        elif kind == "atomic":
            data += struct.pack("!QIQQ", a, k, b, c)
            init.append(".atomic = {0x%xu, 0x%xu, 0x%xu, 0x%xu}" % (a, k, b, c))
        elif kind == "aeth":
            data += struct.pack("!I", (k & 0x7f) << 24 | n)
            init.append(".aeth = {0x%xu, 0x%xu}" % (k & 0x7f, n))
        elif kind == "orig":
            data += struct.pack("!Q", a)
            init.append(".atomic_orig = 0x%xu" % a)
        elif kind == "deth":
            data += struct.pack("!II", k, n)
            init.append(".deth = {0x%xu, 0x%xu}" % (k, n))
        elif kind == "imm":
            data += struct.pack("!I", k)
            init.append(".imm = BE32(0x%xu)" % k)
        elif kind == "inv":
            data += struct.pack("!I", k)
            init.append(".imm = 0x%xu" % k)
    return data, init


def emit(name, packet, init):
    """Prints one vector: the IP packet, and the headers it must decode to."""
    print('\t{\n\t\t.name = "%s",' % name)
    print("\t\t.len = %d," % len(packet))
    print("\t\t.bytes = (const uint8_t[]){")
    for i in range(0, len(packet), 12):
        print("\t\t\t%s," % ", ".join("0x%02x" % b for b in packet[i:i + 12]))
    print("\t\t},")
    if init:
        print("\t\t.fields = true,")
        print("\t\t.pkt = {%s},\n\t}," % ", ".join(init))
    else:
        print("\t},")


def vector(service, name, op, kinds):
    """Builds one packet with scapy and prints it."""
    payload = b"" if op in NO_PAYLOAD else bytes(rnd.getrandbits(8) for _ in range(rnd.randrange(61)))
    pad = -len(payload) % 4
    ext, init = headers(kinds)
    se, ar = rnd.getrandbits(1), rnd.getrandbits(1)
    pkey, qpn, psn = rnd.getrandbits(16), rnd.getrandbits(24), rnd.getrandbits(24)
    packet = raw(IP(src="10.%d.2.3" % rnd.randrange(255), dst="192.168.7.%d" % rnd.randrange(255),
                    flags="DF", id=rnd.choice([0, 0, rnd.getrandbits(16)]), ttl=64,
                    tos=rnd.getrandbits(8)) /
                 UDP(sport=0xc000 + rnd.getrandbits(14), dport=4791) /
                 BTH(opcode=service | op, solicited=se, migreq=1, padcount=pad, pkey=pkey, dqpn=qpn,
                     ackreq=ar, psn=psn) / Raw(ext + payload + bytes(pad)))
    prefix = {RC: "RC ", UC: "UC ", UD: "UD "}[service]
    emit(prefix + name, packet, [
        ".opcode = 0x%x" % (service | op), ".solicited = %d" % se, ".ackreq = %d" % ar,
        ".pad = %d" % pad, ".pkey = 0x%x" % pkey, ".dest_qpn = 0x%x" % qpn, ".psn = 0x%x" % psn,
        ".payload_off = %d" % (12 + len(ext)), ".payload_len = %d" % len(payload)] + init)


def main():
    """Prints the file."""
    print("/* SPDX-License-Identifier: BSD-2-Clause */")
    print("/* RoCEv2 packets from scapy and from the kernel's rxe. Made by gen-wire-vectors.py. */")
    print("/* clang-format off */")
    print("static const struct wire_vector wire_vectors[] = {")
    for name, op, kinds in OPS:
        vector(RC, name, op, kinds)
        if op <= 0x0b:
            vector(UC, name, op, kinds)
    vector(UD, "SEND_ONLY", 0x04, "deth")
    vector(UD, "SEND_ONLY_IMM", 0x05, "deth imm")
    for path in sys.argv[1:]:
        seen = set()
        for frame in rdpcap(path):
            for layer in (IP, IPv6):
                if layer not in frame or UDP not in frame or frame[UDP].dport != 4791:
                    continue
                packet = raw(frame[layer])
                kind = (layer.__name__, raw(frame[UDP].payload)[0])
                if len(packet) < 160 and kind not in seen:
                    seen.add(kind)
                    emit("rxe %s, opcode 0x%02x" % kind, packet, None)
    print("};")


main()
