"""How Java is started for tests that move kilobytes: one quick compiler, one collector, and no second look at the
classes of the packages that are installed.  Half of what a short job costs is Java getting ready for a long one."""

from __future__ import annotations

SMALL_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
