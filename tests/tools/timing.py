# SPDX-License-Identifier: BSD-2-Clause
"""timing.py CASES CAPTURE: holds the times in a capture against the specification.

CASES is what the program `timing` printed, CAPTURE a file that tshark reads. Not earlier is exact;
late is judged by the median of a case, as a busy machine is late now and then, and generously.
Prints a line for each case and exits with 1 if one is wrong.
"""
import subprocess
import sys

# IBTA vol. 1, table 45: RNR NAK timer field, ms.
RNR_MS = [
    655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28,
    1.92, 2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84,
    245.76, 327.68, 491.52,
]
ACK = 17
LATE_MS = 100  # a busy machine; per wait
CLOCK_MS = 0.02  # the capture's clock against the timer's: when a packet is shown, not sent

wrong = 0


def packets(capture):
    """Yields (time in ms, destination QPN, opcode, PSN, syndrome or None) in order."""
    fields = ["frame.time_epoch", "infiniband.bth.destqp", "infiniband.bth.opcode",
              "infiniband.bth.psn", "infiniband.aeth.syndrome"]
    command = ["tshark", "-r", capture, "-T", "fields"]
    for field in fields:
        command += ["-e", field]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        time, qpn, opcode, psn, syndrome = line.split("\t")
        if qpn:
            seconds, fraction = time.split(".")
            yield (int(seconds[-6:]) * 1e3 + int(fraction.ljust(9, "0")[:9]) / 1e6, int(qpn, 0),
                   int(opcode), int(psn), int(syndrome, 0) if syndrome else None)


def check(good, what):
    global wrong
    if not good:
        wrong += 1
        print("WRONG:", what)


def waits(times):
    return [b - a for a, b in zip(times, times[1:])]


def judge(name, measured, least, most):
    """Every wait is at least `least` ms, the median at most `most`."""
    if not measured:
        return
    middle = sorted(measured)[len(measured) // 2]
    print(f"{name}: {min(measured):.3f} to {max(measured):.3f} ms, limits {least:.3f} to {most:.3f}")
    check(min(measured) >= least - CLOCK_MS, f"{name}: earlier than {least:.3f} ms")
    check(middle <= most, f"{name}: later than {most:.3f} ms")


def main():
    cases = [line.split() for line in open(sys.argv[1], encoding="ascii") if line.strip()]
    seen = list(packets(sys.argv[2]))
    check(cases and seen, "nothing was captured")
    for name, code, count, a, b in cases:
        code, count, a, b = int(code), int(count), int(a), int(b)
        sent = [p for p in seen if p[1] == b and p[2] != ACK]
        back = [p for p in seen if p[1] == a and p[2] == ACK]
        title = f"{name} {code}, {count}"
        if name.startswith("rnr"):
            naks = [p for p in back if p[4] >> 5 == 1]
            check(all(p[4] & 31 == code for p in naks), f"{title}: another code in the NAK")
            check(all(p[3] == sent[0][3] for p in naks), f"{title}: another PSN in the NAK")
            # From each NAK to the packet sent again.
            measured = []
            for nak in naks:
                later = [p[0] for p in sent if p[0] > nak[0]]
                if later:
                    measured.append(later[0] - nak[0])
            judge(title, measured, RNR_MS[code], RNR_MS[code] + LATE_MS)
            if name == "rnr":
                check(len(sent) == count + 1, f"{title}: sent {len(sent)} times")
                check(len(naks) == count + 1, f"{title}: {len(naks)} RNR NAKs")
            else:
                check(len(sent) > 8, f"{title}: given up after {len(sent)}")
        elif name == "timeout":
            # 4.096 us * 2^code; four times that is allowed (C9-140), and 16 ms in any case.
            least = 4.096e-3 * 2**code
            check(len(sent) == count + 1, f"{title}: sent {len(sent)} times")
            judge(title, waits([p[0] for p in sent]), least, max(4 * least, 16) + LATE_MS)
        elif name == "long-path":
            check(len(sent) == count, f"{title}: {len(sent)} packets for {count}")
            check(len({p[3] for p in sent}) == count, f"{title}: a packet was sent twice")
            check(back and back[0][0] - sent[-1][0] >= 0, f"{title}: no ACK")
        elif name == "gap":
            naks = [p for p in back if p[4] == 0x60]
            check(len(naks) == 1, f"{title}: {len(naks)} sequence NAKs for one gap")
            check(len(sent) > count, f"{title}: nothing was sent again")
            if naks:
                again = [p for p in sent if p[0] > naks[0][0]]
                check(again and again[0][3] == naks[0][3], f"{title}: not from the gap on")
                judge(title, [again[0][0] - naks[0][0]], 0, LATE_MS)
        else:
            check(False, f"unknown case {name}")
    print(f"{len(cases)} cases, {wrong} wrong")
    sys.exit(1 if wrong else 0)


main()
