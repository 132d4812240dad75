"""Reads a trace by Perfetto's own description of the format, as the package on PyPI has it, and
checks what `trace_processor` checks when it imports one: only fields that the format has; names and
tracks that are described before they are used; slices that nest; flows of at least two events.

FILE. Prints what is in the trace, a line for each kind with its count:
    COUNT slice PATH OF THE TRACK: NAME [STATUS]
    COUNT instant PATH OF THE TRACK: NAME
    COUNT flow TRACK: NAME -> TRACK: NAME ...
    arg NAME VALUE
Processes are P1, P2 in the order of their pids, and numbers of QPs and CQs are left out."""
import collections, re, sys

from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

CLEARED, NEEDS = 1, 2


def known(message):
    """Every field, at any depth, is one of the format."""
    assert len(UnknownFieldSet(message)) == 0, f"a field that {message.DESCRIPTOR.name} does not have"
    for field, value in message.ListFields():
        if field.message_type:
            for each in [value] if hasattr(value, "ListFields") else value:
                known(each)


trace = pb.Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
assert trace.packet[0].for_testing.str.startswith("peerdma; sequences: ")

sequences, tracks, pids, clocks, events = {}, {}, {}, [], []
for packet in trace.packet[1:]:
    known(packet)
    sequence = packet.trusted_packet_sequence_id
    assert sequence != 0
    if packet.first_packet_on_sequence:
        assert sequence not in sequences, "two sequences of one number"
        sequences[sequence] = None
    if packet.HasField("clock_snapshot"):
        assert packet.clock_snapshot.primary_trace_clock == pb.BUILTIN_CLOCK_BOOTTIME
        clocks.append({clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks})
    if packet.sequence_flags & CLEARED:
        data = packet.interned_data
        kinds = [data.event_categories, data.event_names, data.debug_annotation_names]
        sequences[sequence] = [{entry.iid: entry.name for entry in kind} for kind in kinds]
        texts = data.debug_annotation_string_values
        sequences[sequence].append({entry.iid: entry.str.decode() for entry in texts})
    if packet.HasField("track_descriptor"):
        track = packet.track_descriptor
        if track.HasField("process"):
            pids[track.uuid] = track.process.pid
            assert track.process.process_name
        else:
            assert track.parent_uuid in tracks, "a track below an unknown one"
        known_as = tracks.setdefault(track.uuid, (track.parent_uuid, track.name))
        assert known_as == (track.parent_uuid, track.name), "two tracks of one number"
    if packet.HasField("track_event"):
        assert packet.sequence_flags & NEEDS and sequences[sequence], "names that were not given"
        event = packet.track_event
        assert event.track_uuid in tracks, "an event on an unknown track"
        categories, names, args, texts = sequences[sequence]
        assert all(iid in categories for iid in event.category_iids)
        name = names[event.name_iid] if event.name_iid else None
        assert (name is None) == (event.type == pb.TrackEvent.TYPE_SLICE_END)
        given = {}
        for arg in event.debug_annotations:
            value = getattr(arg, arg.WhichOneof("value"))
            given[args[arg.name_iid]] = texts[value] if arg.HasField("string_value_iid") else value
        events.append((packet.timestamp, event, name, given))

assert clocks and all({1, 3, 6} <= set(each) for each in clocks)
assert clocks == sorted(clocks, key=lambda each: each[6]), "clocks that go backwards"
assert len(set(pids.values())) == len(pids)
order = sorted(pids, key=pids.get)


def path(uuid):
    parent, name = tracks[uuid]
    if uuid in pids:
        return f"P{order.index(uuid) + 1}"
    return f"{path(parent)}/{re.sub('0x[0-9a-f]+ |(?<=CQ) [0-9]+', '', name)}"


counts, lines = collections.Counter(), set()
begun, flows, ended = collections.defaultdict(list), collections.defaultdict(list), set()
# The order in the file decides between events of one time, as in trace_processor.
for at, event, name, given in sorted(events, key=lambda event: event[0]):
    where = path(event.track_uuid)
    if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
        assert not begun[event.track_uuid], f"{where}: {name} begins in another slice"
        begun[event.track_uuid].append((at, name))
    elif event.type == pb.TrackEvent.TYPE_SLICE_END:
        assert begun[event.track_uuid], f"{where}: an end without a beginning"
        began, was = begun[event.track_uuid].pop()
        assert began <= at
        counts[f"slice {where}: {was} {given.get('status', '')}".rstrip()] += 1
    else:
        assert event.type == pb.TrackEvent.TYPE_INSTANT
        counts[f"instant {where}: {name}"] += 1
    for flow in list(event.flow_ids) + list(event.terminating_flow_ids):
        flows[flow].append(f"{where}: {name}")
    ended.update(event.terminating_flow_ids)
    lines.update(f"arg {key} {value}" for key, value in given.items() if isinstance(value, str))
for track, left in begun.items():
    for _, name in left:
        counts[f"slice {path(track)}: {name} unfinished"] += 1
for flow, members in flows.items():
    # A request that waits, or a packet that was lost or went to a process without a trace.
    if len(members) > 1:
        counts["flow " + " -> ".join(members)] += 1
    else:
        assert flow not in ended or "CQ" in members[0]
for line, count in sorted(counts.items()):
    print(count, line)
print("\n".join(sorted(lines)))
print("sequences", len(sequences), "processes", len(pids), "events", len(events))
