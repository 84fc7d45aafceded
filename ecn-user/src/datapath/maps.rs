//! Typed access to the pinned maps.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use aya::maps::{
    Array, HashMap, IterableMap as _, Map, MapData, MapError, MapType, PerCpuArray, Queue, RingBuf,
};
use ecn_core::{
    abi::{self, Count, name},
    backward, flow, marking, shares, vqueue,
};

use super::{Error, Result, Sizes, is_version, pin_dir};
use crate::sys::{
    calls as sys,
    pod::{self, Plain, Raw},
};

/// Copy the value under its spin lock (`BPF_F_LOCK`).
const LOCKED: u64 = 4;

type Entries<K, V> = HashMap<MapData, Raw<K>, Raw<V>>;

/// All shared maps of a running datapath.
pub struct Maps {
    control: Array<MapData, Raw<abi::Control>>,
    device: Entries<abi::DeviceKey, abi::Device>,
    near: Array<MapData, Raw<abi::Near>>,
    bridge: MapData,
    virtual_queues: MapData,
    marking: Array<MapData, Raw<marking::Policy>>,
    backward: Array<MapData, Raw<backward::Policy>>,
    point: Array<MapData, Raw<abi::LockedPoint>>,
    endpoint: Array<MapData, Raw<abi::Endpoint>>,
    flow: Entries<flow::Key, abi::LockedFlow>,
    receiver: Entries<flow::Key, abi::LockedReceiver>,
    count: PerCpuArray<MapData, u64>,
    pin: HashMap<MapData, Raw<flow::Key>, u64>,
    added: Array<MapData, u64>,
    removed: Array<MapData, u64>,
    departed: Array<MapData, u64>,
    in_force: Array<MapData, u64>,
    limit: Array<MapData, u64>,
    socket: HashMap<MapData, u64, Raw<flow::Key>>,
    siblings: Array<MapData, Raw<abi::Siblings>>,
    class: Queue<MapData, u32>,
    flow_max: usize,
}

/// A snapshot of a bridge's counters.
pub struct BridgeView(Vec<u8>);

impl BridgeView {
    fn word(&self, at: usize) -> u32 {
        let word = self.0.get(at..at + 4).and_then(|b| b.try_into().ok());
        word.map_or(0, u32::from_ne_bytes)
    }

    /// Events so far, modulo 2^32.
    pub fn sequence(&self) -> u32 {
        self.word(std::mem::offset_of!(abi::Bridge, sequence))
    }

    fn port_at(slot: u32) -> usize {
        std::mem::offset_of!(abi::Bridge, switch) + slot as usize * size_of::<marking::Port>()
    }

    /// Counters of the port in a slot.
    pub fn port(&self, slot: u32) -> marking::Port {
        let at = Self::port_at(slot);
        self.0.get(at..).and_then(pod::read).unwrap_or_default()
    }

    fn change_port(&mut self, slot: u32, change: impl FnOnce(&mut marking::Port)) {
        let mut port = self.port(slot);
        change(&mut port);
        let at = Self::port_at(slot);
        if let Some(place) = self.0.get_mut(at..at + size_of::<marking::Port>()) {
            place.copy_from_slice(pod::bytes(&port));
        }
    }

    /// Removes what has left the virtual queues by now, which the counters contain until the next packet. Queues and
    /// bridge are read one after the other, so this may be off by the packets in between.
    fn catch_up(&mut self, queues: &[u8], now_ns: u64) {
        let at = std::mem::offset_of!(abi::Virtual, queues);
        let queues = queues.get(at..).unwrap_or_default();
        for (o, queue) in queues.chunks_exact(size_of::<vqueue::Queue>()).enumerate() {
            let Some(queue) = pod::read::<vqueue::Queue>(queue) else {
                continue;
            };
            for packet in queue.started(now_ns) {
                let n = packet.packets;
                self.change_port(packet.input, |p| {
                    p.occupancy = p.occupancy.saturating_sub(n)
                });
                self.change_port(o as u32, |p| {
                    p.departed += u64::from(n.min(p.cnt1));
                    p.cnt1 = p.cnt1.saturating_sub(n);
                    p.cnt2 = p.cnt2.min(p.cnt1);
                });
            }
        }
    }

    fn shares_at(member: usize) -> usize {
        std::mem::offset_of!(abi::Bridge, shares) + member
    }

    /// Measurements of the output in a slot.
    pub fn output(&self, slot: u32) -> shares::Output {
        let at = Self::shares_at(std::mem::offset_of!(abi::Shares, outputs))
            + slot as usize * size_of::<shares::Output>();
        self.0.get(at..).and_then(pod::read).unwrap_or_default()
    }

    /// The source at a place in the table.
    pub fn source(&self, place: u32) -> shares::Source {
        let at = Self::shares_at(std::mem::offset_of!(abi::Shares, sources))
            + place as usize * size_of::<shares::Source>();
        self.0.get(at..).and_then(pod::read).unwrap_or_default()
    }

    /// Packets from input slot `i` that wait for output slot `o`.
    pub fn waiting(&self, i: u32, o: u32) -> u32 {
        let at = std::mem::offset_of!(abi::Bridge, switch)
            + abi::PORTS * size_of::<marking::Port>()
            + (i as usize * abi::PORTS + o as usize) * 4;
        self.word(at)
    }
}

fn bridge_error(errno: nix::errno::Errno) -> Error {
    Error::map(name::BRIDGE)(MapError::IoError(errno.into()))
}

fn open(dir: &Path, name: &str, kind: MapType, key: u32, value: u32) -> Result<MapData> {
    let path = dir.join(name);
    if !dir.exists() {
        return Err(Error::NotRunning(dir.to_owned()));
    }
    let data = MapData::from_pin(&path).map_err(Error::map(name))?;
    let info = data.info().map_err(Error::map(name))?;
    let found = info.map_type().map_err(Error::map(name))?;
    let (found_key, found_value) = (info.key_size(), info.value_size());
    if (found, found_key, found_value) != (kind, key, value) {
        return Err(Error::Layout {
            name: name.to_owned(),
            path,
            what: format!(
                "{found:?} with keys of {found_key} and values of {found_value} bytes, \
                 expected {kind:?} with {key} and {value}"
            ),
        });
    }
    Ok(data)
}

const fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// Maps that only the programs use, and ring buffers.
const OTHERS: [(&str, MapType, u32, u32); 6] = [
    (name::QUOTED, MapType::Array, 4, 4),
    (name::RATE, MapType::RingBuf, 0, 0),
    (name::TRACE, MapType::RingBuf, 0, 0),
    (name::MARKED, MapType::LruHash, size::<flow::Key>(), 8),
    (name::TAIL, MapType::ProgramArray, 4, 4),
    (name::WORK, MapType::PerCpuArray, 4, size::<abi::Scratch>()),
];

/// The maps pinned below `pin`, if a datapath of this version can take over all of them.
///
/// # Errors
///
/// The reason why it cannot.
pub fn adoptable(pin: &Path, least: Sizes) -> std::result::Result<Maps, String> {
    let dir = pin_dir(pin).join("maps");
    if !dir.exists() {
        let entries = std::fs::read_dir(pin).into_iter().flatten().flatten();
        let mut versions = entries
            .map(|entry| entry.file_name())
            .filter(|name| is_version(name));
        return Err(match versions.next() {
            Some(other) => format!(
                "the maps are of layout {}, and this version has v{}",
                other.display(),
                abi::ABI
            ),
            None => format!("nothing is pinned below {}", pin.display()),
        });
    }
    let reason = |error| match error {
        Error::Layout { name, what, .. } => format!("map {name}: {what}"),
        error => error.to_string(),
    };
    let maps = Maps::open(pin).map_err(reason)?;
    for (name, kind, key, value) in OTHERS {
        open(&dir, name, kind, key, value).map_err(reason)?;
    }
    let bridges = maps.bridges().map_err(reason)?;
    for (what, has, wanted) in [
        ("flows", maps.flow_max as u32, least.flows),
        ("bridges", bridges, least.bridges),
    ] {
        if has < wanted {
            return Err(format!(
                "there is room for {has} {what}, and the configuration has {wanted}"
            ));
        }
    }
    Ok(maps)
}

impl Maps {
    /// Opens the maps that a running agent or rig has pinned below `pin`, and checks their layouts, which pins do not
    /// record.
    ///
    /// # Errors
    ///
    /// None are pinned, or they belong to another version.
    pub fn open(pin: &Path) -> Result<Self> {
        let dir = pin_dir(pin).join("maps");
        let d = &dir;
        macro_rules! map {
            ($kind:ident, $name:expr, $key:expr, $value:expr) => {
                map!($kind, $kind, $name, $key, $value)
            };
            ($kind:ident, $type:ident, $name:expr, $key:expr, $value:expr) => {
                Map::$kind(open(d, $name, MapType::$type, $key, $value)?)
                    .try_into()
                    .map_err(Error::map($name))?
            };
        }
        let key = size::<flow::Key>();
        let flow_data = open(d, name::FLOW, MapType::Hash, key, size::<abi::LockedFlow>())?;
        let flow_max = flow_data
            .info()
            .map_err(Error::map(name::FLOW))?
            .max_entries() as usize;
        let virtual_queues = open(d, name::VIRTUAL, MapType::Array, 4, size::<abi::Virtual>())?;
        let maps = Self {
            virtual_queues,
            control: map!(Array, name::CONTROL, 4, size::<abi::Control>()),
            device: map!(
                HashMap,
                Hash,
                name::DEVICE,
                size::<abi::DeviceKey>(),
                size::<abi::Device>()
            ),
            near: map!(Array, name::NEAR, 4, size::<abi::Near>()),
            bridge: open(d, name::BRIDGE, MapType::Array, 4, size::<abi::Bridge>())?,
            marking: map!(Array, name::MARKING, 4, size::<marking::Policy>()),
            backward: map!(Array, name::BACKWARD, 4, size::<backward::Policy>()),
            point: map!(Array, name::POINT, 4, size::<abi::LockedPoint>()),
            endpoint: map!(Array, name::ENDPOINT, 4, size::<abi::Endpoint>()),
            flow: Map::HashMap(flow_data)
                .try_into()
                .map_err(Error::map(name::FLOW))?,
            receiver: map!(
                HashMap,
                Hash,
                name::RECEIVER,
                key,
                size::<abi::LockedReceiver>()
            ),
            count: map!(PerCpuArray, name::COUNT, 4, 8),
            pin: map!(HashMap, Hash, name::PIN, key, 8),
            added: map!(Array, name::ADDED, 4, 8),
            removed: map!(Array, name::REMOVED, 4, 8),
            departed: map!(Array, name::DEPARTED, 4, 8),
            in_force: map!(Array, name::IN_FORCE, 4, 8),
            limit: map!(Array, name::LIMIT, 4, 8),
            socket: map!(HashMap, Hash, name::SOCKET, 8, key),
            siblings: map!(Array, name::SIBLINGS, 4, size::<abi::Siblings>()),
            class: map!(Queue, name::CLASS, 0, 4),
            flow_max,
        };
        let abi = maps.control()?.abi;
        if abi != abi::ABI && abi != 0 {
            return Err(Error::Layout {
                name: name::CONTROL.to_owned(),
                path: dir,
                what: format!("ABI {abi}, expected {}", abi::ABI),
            });
        }
        Ok(maps)
    }

    /// Bridges for which there is room.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn bridges(&self) -> Result<u32> {
        let info = self.bridge.info().map_err(Error::map(name::BRIDGE))?;
        Ok(info.max_entries())
    }

    /// All devices that have an entry.
    pub fn devices(&self) -> Vec<(abi::DeviceKey, abi::Device)> {
        let entries = self.device.iter().flatten();
        entries.map(|(key, device)| (key.0, device.0)).collect()
    }

    /// The agent's control entry.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn control(&self) -> Result<abi::Control> {
        Ok(self
            .control
            .get(&0, 0)
            .map_err(Error::map(name::CONTROL))?
            .0)
    }

    /// Writes the agent's control entry.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_control(&mut self, control: abi::Control) -> Result<()> {
        self.control
            .set(0, Raw(control), 0)
            .map_err(Error::map(name::CONTROL))
    }

    /// Writes the entry of a device.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_device(&mut self, key: abi::DeviceKey, device: abi::Device) -> Result<()> {
        self.device
            .insert(Raw(key), Raw(device), 0)
            .map_err(Error::map(name::DEVICE))?;
        let holder = self.near(key)?.key;
        if holder == key || holder.ifindex == 0 {
            self.set_near(key.near(), key, device)?;
        }
        Ok(())
    }

    fn near(&self, key: abi::DeviceKey) -> Result<abi::Near> {
        let near = self.near.get(&key.near(), 0);
        near.map(|near| near.0).map_err(Error::map(name::NEAR))
    }

    /// Programs may read during this: the entry is marked first and unmarked last.
    fn set_near(&mut self, at: u32, key: abi::DeviceKey, device: abi::Device) -> Result<()> {
        let failed = Error::map(name::NEAR);
        let old = self.near.get(&at, 0);
        let old = old.map_err(Error::map(name::NEAR))?.0;
        let marked = abi::Near {
            writes: old.writes.wrapping_add(1) | 1,
            ..old
        };
        let new = abi::Near {
            key,
            device,
            ..marked
        };
        let done = abi::Near {
            writes: marked.writes.wrapping_add(1),
            ..new
        };
        [marked, new, done]
            .into_iter()
            .try_for_each(|near| self.near.set(at, Raw(near), 0))
            .map_err(failed)
    }

    /// The entry of a device; default if it has none.
    pub fn device(&self, key: abi::DeviceKey) -> abi::Device {
        self.device
            .get(&Raw(key), 0)
            .map(|d| d.0)
            .unwrap_or_default()
    }

    /// Removes the entry of a device.
    pub fn remove_device(&mut self, key: abi::DeviceKey) {
        let _ = self.device.remove(&Raw(key));
        let Ok(near) = self.near(key) else { return };
        if near.key != key {
            return;
        }
        // An empty entry means that no device uses this place.
        let heir = self
            .device
            .keys()
            .flatten()
            .take(abi::NEAR as usize)
            .map(|other| other.0)
            .find(|other| other.near() == key.near());
        let heir = heir.unwrap_or_default();
        let _ = self.set_near(key.near(), heir, self.device(heir));
    }

    /// Current counters of a bridge.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn bridge(&self, number: u32) -> Result<BridgeView> {
        sys::map_value(self.bridge.fd().as_fd(), size_of::<abi::Bridge>(), number)
            .map(BridgeView)
            .map_err(bridge_error)
    }

    /// A bridge's counters at a time (monotonic clock, ns): without what has left its virtual queues by then.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn bridge_at(&self, number: u32, now_ns: u64) -> Result<BridgeView> {
        // First: what the kernel dequeues before the bridge is read is subtracted twice, and no counter is below zero. In
        // the other order an empty queue could seem to hold packets.
        let map = self.virtual_queues.fd().as_fd();
        let queues = sys::map_value(map, size_of::<abi::Virtual>(), number)
            .map_err(|errno| Error::map(name::VIRTUAL)(MapError::IoError(errno.into())))?;
        let mut view = self.bridge(number)?;
        view.catch_up(&queues, now_ns);
        Ok(view)
    }

    /// Sets a bridge's counters to zero. If packets wait, use the program [`name::PORT_RESET`] instead.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn clear_bridge(&mut self, number: u32) -> Result<()> {
        sys::clear_map_value(self.bridge.fd().as_fd(), size_of::<abi::Bridge>(), number)
            .map_err(bridge_error)
    }

    /// A bridge's marking policy.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn marking(&self, number: u32) -> Result<marking::Policy> {
        Ok(self
            .marking
            .get(&number, 0)
            .map_err(Error::map(name::MARKING))?
            .0)
    }

    /// Changes a bridge's marking policy while traffic runs.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_marking(&mut self, number: u32, policy: marking::Policy) -> Result<()> {
        self.marking
            .set(number, Raw(policy), 0)
            .map_err(Error::map(name::MARKING))
    }

    /// Policy of a bridge for backward messages.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn backward(&self, number: u32) -> Result<backward::Policy> {
        let policy = self.backward.get(&number, 0);
        Ok(policy.map_err(Error::map(name::BACKWARD))?.0)
    }

    /// Changes the policy for backward messages while traffic runs.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_backward(&mut self, number: u32, policy: backward::Policy) -> Result<()> {
        self.backward
            .set(number, Raw(policy), 0)
            .map_err(Error::map(name::BACKWARD))
    }

    /// The congestion point of the port in a slot of a bridge.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn point(&self, bridge: u32, slot: u32) -> Result<backward::Point> {
        let at = bridge * abi::PORTS as u32 + slot;
        let point = self.point.get(&at, LOCKED);
        Ok(point.map_err(Error::map(name::POINT))?.0.point)
    }

    /// Clears a congestion point, before another port gets the slot.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn clear_point(&mut self, bridge: u32, slot: u32) -> Result<()> {
        let at = bridge * abi::PORTS as u32 + slot;
        self.point
            .set(at, Raw(abi::LockedPoint::default()), LOCKED)
            .map_err(Error::map(name::POINT))
    }

    /// An endpoint's policy.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn endpoint(&self, number: u32) -> Result<abi::Endpoint> {
        Ok(self
            .endpoint
            .get(&number, 0)
            .map_err(Error::map(name::ENDPOINT))?
            .0)
    }

    /// Changes an endpoint's policy while traffic runs.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_endpoint(&mut self, number: u32, endpoint: abi::Endpoint) -> Result<()> {
        self.endpoint
            .set(number, Raw(endpoint), 0)
            .map_err(Error::map(name::ENDPOINT))
    }

    /// All flows sent from endpoints here.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn flows(&self) -> Result<Vec<(flow::Key, flow::Flow)>> {
        let entries = entries(&self.flow, self.flow_max, name::FLOW)?;
        // The shared entry of the short flows is not a flow.
        let one = |key: &flow::Key| *key != flow::Key::short(key.endpoint);
        Ok(entries
            .into_iter()
            .filter(|(key, _)| one(key))
            .map(|(key, value)| (key, value.flow))
            .collect())
    }

    /// Maximum number of sent flows, and of received flows.
    pub const fn flow_max(&self) -> usize {
        self.flow_max
    }

    /// All flows received at endpoints here.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn receivers(&self) -> Result<Vec<(flow::Key, ecn_core::echo::Receiver)>> {
        let entries = entries(&self.receiver, self.flow_max, name::RECEIVER)?;
        Ok(entries
            .into_iter()
            .map(|(key, value)| (key, value.receiver))
            .collect())
    }

    /// One flow.
    pub fn flow(&self, key: &flow::Key) -> Option<flow::Flow> {
        self.flow
            .get(&Raw(*key), LOCKED)
            .ok()
            .map(|value| value.0.flow)
    }

    /// Removes a flow and its socket; its next packet starts a new one.
    pub fn remove_flow(&mut self, key: &flow::Key, flow: &flow::Flow) {
        if self.flow.remove(&Raw(*key)).is_ok() {
            self.count_removed(abi::TABLE_FLOWS, key);
        }
        if flow.socket != 0 {
            let _ = self.socket.remove(&flow.socket);
        }
    }

    /// Removes a received flow.
    pub fn remove_receiver(&mut self, key: &flow::Key) {
        if self.receiver.remove(&Raw(*key)).is_ok() {
            self.count_removed(abi::TABLE_RECEIVERS, key);
        }
    }

    /// Divides both tables, of `max` entries each, among the endpoints ([`abi::has_room`]). To be called once, while
    /// they are empty.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_quotas(&mut self, max: u64) -> Result<()> {
        [abi::TABLE_FLOWS, abi::TABLE_RECEIVERS]
            .into_iter()
            .try_for_each(|table| {
                let all = abi::quota_index(table, abi::ALL_ENDPOINTS);
                self.removed.set(all, max, 0)
            })
            .map_err(Error::map(name::REMOVED))
    }

    /// Number of entries that an endpoint has in a table.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn held(&self, table: u32, endpoint: u32) -> Result<u64> {
        let at = abi::quota_index(table, endpoint);
        let added = self.added.get(&at, 0).map_err(Error::map(name::ADDED))?;
        let removed = self.removed.get(&at, 0);
        let removed = removed.map_err(Error::map(name::REMOVED))?;
        // One was read before the other.
        Ok(u64::try_from(added.wrapping_sub(removed) as i64).unwrap_or(0))
    }

    fn count_removed(&mut self, table: u32, key: &flow::Key) {
        /// Two threads of an agent remove entries.
        static WRITES: Mutex<()> = Mutex::new(());
        let _writes = WRITES.lock().unwrap_or_else(PoisonError::into_inner);
        for of in [u32::from(key.endpoint), abi::ALL_ENDPOINTS] {
            let at = abi::quota_index(table, of);
            if let Ok(removed) = self.removed.get(&at, 0) {
                let _ = self.removed.set(at, removed.wrapping_add(1), 0);
            }
        }
    }

    /// Offers a class to new flows. False: no more can be offered.
    pub fn offer_class(&mut self, class: u32) -> bool {
        self.class.push(class, 0).is_ok()
    }

    /// The classes on offer: each is taken, and offered again behind the others.
    pub fn offered_classes(&mut self) -> BTreeSet<u32> {
        let mut offered = BTreeSet::new();
        while let Ok(class) = self.class.pop(0) {
            let seen = !offered.insert(class);
            if self.class.push(class, 0).is_err() {
                offered.remove(&class);
            }
            if seen {
                break;
            }
        }
        offered
    }

    /// Whether a class exists for the programs.
    pub fn is_in_force(&self, class: u32) -> bool {
        self.in_force.get(&class, 0).is_ok_and(|value| value != 0)
    }

    /// Records that a class's decrease is in force. The next packet to leave was still scheduled at the old rate, and
    /// HTB's burst of one packet lets another follow it at the old distance: the round lasts until those two.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_in_force(&mut self, class: u32, decrease: u32) -> Result<()> {
        let departed = self.departed(class)?;
        let value = abi::in_force(decrease, (departed as u32).wrapping_add(2));
        self.in_force
            .set(class, value, 0)
            .map_err(Error::map(name::IN_FORCE))
    }

    /// Records that a class does not exist, or not any more: packets do not select it.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn clear_in_force(&mut self, class: u32) -> Result<()> {
        self.in_force
            .set(class, 0, 0)
            .map_err(Error::map(name::IN_FORCE))
    }

    /// Resets the short flows of an endpoint to one flow at full rate.
    pub fn reset_short(&mut self, endpoint: u32) {
        let fresh = abi::LockedFlow {
            flow: flow::Flow::new(),
            ..abi::LockedFlow::default()
        };
        let key = flow::Key::short(endpoint as u16);
        // A program may be using the entry: what it writes stays until the next mark or pause.
        let _ = self.flow.insert(Raw(key), Raw(fresh), 0);
        let _ = self
            .siblings
            .set(endpoint, Raw(abi::Siblings::default()), 0);
    }

    /// Packets that have left through a class since a flow took it.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn departed(&self, class: u32) -> Result<u64> {
        self.departed
            .get(&class, 0)
            .map_err(Error::map(name::DEPARTED))
    }

    /// Sets the rate of a class where programs enforce it, bytes per second; 0: it follows its response.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_limit(&mut self, class: u32, rate_bytes_per_s: u64) -> Result<()> {
        self.limit
            .set(class, rate_bytes_per_s, 0)
            .map_err(Error::map(name::LIMIT))
    }

    /// Rates set by users, bytes per second.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn pins(&self) -> Result<Vec<(flow::Key, u64)>> {
        let mut pins = Vec::new();
        for entry in self.pin.iter().take(1024) {
            match entry {
                Ok((key, rate)) => pins.push((key.0, rate)),
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(Error::map(name::PIN)(error)),
            }
        }
        Ok(pins)
    }

    /// Pins a flow's rate.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn set_pin(&mut self, key: &flow::Key, rate_bytes_per_s: u64) -> Result<()> {
        self.pin
            .insert(Raw(*key), rate_bytes_per_s, 0)
            .map_err(Error::map(name::PIN))
    }

    /// Unpins a flow. False: it was not pinned.
    pub fn remove_pin(&mut self, key: &flow::Key) -> bool {
        self.pin.remove(&Raw(*key)).is_ok()
    }

    /// A counter, summed over all CPUs.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn count(&self, what: Count) -> Result<u64> {
        let values = self
            .count
            .get(&(what as u32), 0)
            .map_err(Error::map(name::COUNT))?;
        Ok(values.iter().sum())
    }
}

/// Entries read together: more than hash to one bucket, or the kernel refuses (ENOSPC).
const TOGETHER: usize = 1024;

/// Continues to read a map that changes meanwhile: one bucket after the other, so that this ends, and an entry that
/// exists throughout is found once. Returns whether the end was reached.
fn read_on<K: Plain + Copy, V: Plain + Copy>(
    map: &Entries<K, V>,
    cursor: &mut sys::Cursor,
    name: &str,
    found: &mut Vec<(K, V)>,
) -> Result<bool>
where
    Raw<K>: aya::Pod,
    Raw<V>: aya::Pod,
{
    let (mut keys, mut values) = (
        vec![0; TOGETHER * size_of::<K>()],
        vec![0; TOGETHER * size_of::<V>()],
    );
    let (n, last) = sys::map_batch(
        map.map().fd().as_fd(),
        cursor,
        &mut keys,
        size_of::<K>(),
        &mut values,
        size_of::<V>(),
    )
    .map_err(|errno| Error::map(name)(MapError::IoError(errno.into())))?;
    let keys = keys.chunks_exact(size_of::<K>());
    let values = values.chunks_exact(size_of::<V>());
    for (key, value) in keys.zip(values).take(n) {
        found.extend(pod::read(key).zip(pod::read(value)));
    }
    Ok(last)
}

fn entries<K: Plain + Copy, V: Plain + Copy>(
    map: &Entries<K, V>,
    max: usize,
    name: &str,
) -> Result<Vec<(K, V)>>
where
    Raw<K>: aya::Pod,
    Raw<V>: aya::Pod,
{
    let mut found = Vec::new();
    let mut cursor = sys::Cursor::default();
    while !read_on(map, &mut cursor, name, &mut found)? && found.len() <= 2 * max {}
    Ok(found)
}

/// Walks the tables in parts.
#[derive(Debug, Default)]
pub struct Sweeper {
    /// Flows sent from here.
    pub sent: Walk,
    /// Flows received here.
    pub received: Walk,
}

/// Successive walks through a table.
#[derive(Debug, Default)]
pub struct Walk {
    so_far: usize,
    began: Option<Instant>,
    cursor: sys::Cursor,
}

/// Parts of a table in one step of a [`Walk`].
const PARTS: usize = 8;
/// Minimum time between the starts of walks: each copies tens of thousands of entries.
const WALK_PERIOD: Duration = Duration::from_secs(1);

impl Walk {
    /// Whether the last part completed a walk.
    pub fn is_over(&self) -> bool {
        self.so_far == 0
    }

    /// The next part; `None`: too early for another walk.
    fn next<K: Plain + Copy, V: Plain + Copy>(
        &mut self,
        map: &Entries<K, V>,
        name: &str,
    ) -> Result<Option<Vec<(K, V)>>>
    where
        Raw<K>: aya::Pod,
        Raw<V>: aya::Pod,
    {
        if self.is_over() {
            if self.began.is_some_and(|at| at.elapsed() < WALK_PERIOD) {
                return Ok(None);
            }
            self.began = Some(Instant::now());
        }
        let mut found = Vec::new();
        for _ in 0..PARTS {
            if read_on(map, &mut self.cursor, name, &mut found)? {
                self.so_far = 0;
                return Ok(Some(found));
            }
        }
        self.so_far += found.len();
        Ok(Some(found))
    }
}

impl Sweeper {
    /// The next part of the sent flows; `None`: nothing to read yet.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn flows(&mut self, maps: &Maps) -> Result<Option<Vec<(flow::Key, flow::Flow)>>> {
        let found = self.sent.next(&maps.flow, name::FLOW)?;
        Ok(found.map(|found| found.into_iter().map(|(k, v)| (k, v.flow)).collect()))
    }

    /// The next part of the received flows; `None`: nothing to read yet.
    ///
    /// # Errors
    ///
    /// [`Error::Map`]
    pub fn receivers(
        &mut self,
        maps: &Maps,
    ) -> Result<Option<Vec<(flow::Key, ecn_core::echo::Receiver)>>> {
        let found = self.received.next(&maps.receiver, name::RECEIVER)?;
        Ok(found.map(|found| found.into_iter().map(|(k, v)| (k, v.receiver)).collect()))
    }
}

macro_rules! ring {
    ($(#[$doc:meta])* $ring:ident, $event:ty, $name:expr) => {
        $(#[$doc])*
        pub struct $ring(RingBuf<MapData>);

        impl $ring {
            /// Opens the ring buffer pinned below `pin`. It supports one reader.
            ///
            /// # Errors
            ///
            /// It is not pinned.
            pub fn open(pin: &Path) -> Result<Self> {
                let dir = pin_dir(pin).join("maps");
                let data = MapData::from_pin(dir.join($name))
                    .map_err(|_| Error::NotRunning(dir))?;
                let ring = Map::RingBuf(data).try_into().map_err(Error::map($name))?;
                Ok(Self(ring))
            }

            /// The next event, if any.
            #[expect(clippy::should_implement_trait, reason = "an iterator would end for good")]
            pub fn next(&mut self) -> Option<$event> {
                self.0.next().and_then(|item| pod::read(&item))
            }
        }

        impl AsFd for $ring {
            fn as_fd(&self) -> BorrowedFd<'_> {
                pod::borrow(&self.0)
            }
        }
    };
}

ring!(
    /// New rates from the programs.
    RateEvents,
    abi::RateEvent,
    name::RATE
);
ring!(
    /// Events at ports, when [`abi::TRACE_PORTS`] is set.
    TraceEvents,
    abi::PortEvent,
    name::TRACE
);
