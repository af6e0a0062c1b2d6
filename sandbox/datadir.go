package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/kshare/kshare/wire"
)

// A data directory holds
//
//	lock              held while a sandbox runs on it
//	sandbox.json      what the sandbox is, and what kfake does not keep
//	transactions.log  what a transaction coordinator keeps: see txn_log.go
//	kafka/            kfake's own

// dataDirFormat is raised when an older kshare cannot read sandbox.json.
const dataDirFormat = 1

// dataDir is the open data directory of a sandbox; one without a path keeps
// nothing. It is safe for concurrent use.
type dataDir struct {
	path string
	lock *os.File

	mu    sync.Mutex
	state dataDirState
}

// dataDirState is sandbox.json.
type dataDirState struct {
	Format       int    `json:"format"`
	Dialect      string `json:"dialect"`
	Brokers      int    `json:"brokers"`
	ClusterID    string `json:"cluster_id"`
	PendingState string `json:"pending_state"`

	Features      map[string]int16 `json:"features"`
	FeaturesEpoch int64            `json:"features_epoch"`

	GroupConfigs     map[string]map[string]string `json:"group_configs,omitempty"`
	InternalPassword string                       `json:"internal_password"`

	// Running holds while a sandbox runs on the directory; at a start it says
	// that the last one was killed.
	Running bool `json:"running,omitempty"`
}

// InUseError says that another sandbox runs on a data directory.
type InUseError struct{ Dir string }

// Error names the directory.
func (e *InUseError) Error() string {
	return fmt.Sprintf("data directory %s: another sandbox is running on it", e.Dir)
}

// MismatchError says that a data directory belongs to a sandbox of another kind.
type MismatchError struct {
	Dir       string
	What      string // "dialect", "number of brokers" or "pending state"
	Have, Ask string // what the directory has, and what was asked for
}

// Error names the directory and the two values.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("data directory %s: its %s is %s, not %s", e.Dir, e.What, e.Have, e.Ask)
}

// openDataDir opens the directory of a configuration, and creates it if need be.
// fresh holds what a new one gets.
func openDataDir(path string, fresh dataDirState) (*dataDir, error) {
	d := &dataDir{path: path, state: fresh}
	d.state.Format = dataDirFormat
	if path == "" {
		return d, nil
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	d.lock = lock
	if err := lockFile(lock); err != nil {
		_ = lock.Close()
		if errors.Is(err, errLocked) {
			return nil, &InUseError{Dir: path}
		}
		return nil, fmt.Errorf("data directory: lock %s: %w", lock.Name(), err)
	}
	if err := d.load(fresh); err != nil {
		_ = d.close()
		return nil, err
	}
	return d, nil
}

func (d *dataDir) load(ask dataDirState) error {
	raw, err := os.ReadFile(d.file())
	if errors.Is(err, fs.ErrNotExist) {
		return d.write()
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var have dataDirState
	if err := json.Unmarshal(raw, &have); err != nil {
		return fmt.Errorf("data directory: %s: %w", d.file(), err)
	}
	if have.Format > dataDirFormat {
		return fmt.Errorf("data directory: %s has format %d, this kshare knows %d", d.file(), have.Format, dataDirFormat)
	}
	for _, m := range []MismatchError{
		{What: "dialect", Have: have.Dialect, Ask: ask.Dialect},
		{What: "number of brokers", Have: fmt.Sprint(have.Brokers), Ask: fmt.Sprint(ask.Brokers)},
		{What: "pending state", Have: have.PendingState, Ask: ask.PendingState},
	} {
		if m.Have != m.Ask {
			m.Dir = d.path
			return &m
		}
	}
	d.state = have
	return nil
}

func (d *dataDir) file() string { return filepath.Join(d.path, "sandbox.json") }

// kafka is the directory that kfake gets, "" for none.
func (d *dataDir) kafka() string {
	if d.path == "" {
		return ""
	}
	return filepath.Join(d.path, "kafka")
}

// transactions is the file of the transaction log, "" for none.
func (d *dataDir) transactions() string {
	if d.path == "" {
		return ""
	}
	return filepath.Join(d.path, "transactions.log")
}

// get returns what is kept. Its maps and slices are not to be changed.
func (d *dataDir) get() dataDirState {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.state
}

// change changes what is kept.
func (d *dataDir) change(fn func(*dataDirState)) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.state
	fn(&d.state)
	if d.path == "" {
		return nil
	}
	if err := d.write(); err != nil {
		d.state = before
		return err
	}
	return nil
}

// write replaces sandbox.json in one step.
func (d *dataDir) write() error {
	raw, err := json.MarshalIndent(d.state, "", "  ")
	if err != nil {
		return fmt.Errorf("data directory: encode %s: %w", d.file(), err)
	}
	if err := replaceFile(d.file(), append(raw, '\n')); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}

func replaceFile(name string, content []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*.tmp")
	if err != nil {
		return err
	}
	_, err = tmp.Write(content)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// patchUsers makes the PLAIN users that kfake is about to load those of this
// run: what it finds on disk replaces what it is told, and nothing can change a
// PLAIN user later. SCRAM users are left alone.
func (d *dataDir) patchUsers(plain map[string]string) error {
	name := filepath.Join(d.kafka(), "sasl.json")
	raw, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var users map[string]json.RawMessage
	if err := json.Unmarshal(raw, &users); err != nil {
		return fmt.Errorf("data directory: %s: %w", name, err)
	}
	if users["plain"], err = json.Marshal(plain); err != nil {
		return fmt.Errorf("data directory: %s: %w", name, err)
	}
	if raw, err = json.Marshal(users); err != nil {
		return fmt.Errorf("data directory: %s: %w", name, err)
	}
	if err := replaceFile(name, raw); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return nil
}

func (d *dataDir) close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close() // which unlocks it
}

// newDataDirState is what a new sandbox of that configuration keeps.
func newDataDirState(c config, b build) dataDirState {
	levels := make(map[string]int16, len(b.levels))
	for name, level := range b.levels {
		levels[name] = level
	}
	levels[wire.FeatureShareVersion] = c.shareVersion
	id := c.clusterID
	if id == "" {
		id = randomText(16)
	}
	return dataDirState{
		Dialect: c.dialect.Name, Brokers: c.brokers, ClusterID: id, PendingState: c.pending.String(),
		Features: levels, FeaturesEpoch: 1, InternalPassword: randomText(24),
	}
}
