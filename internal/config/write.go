package config

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
	"go.yaml.in/yaml/v3"
)

// Change is a change to a context.
type Change struct {
	Set   map[Key]string // text as a flag has it; paths are made absolute
	Unset []Key
}

// SetContext changes a context of a file, or adds it, and reports whether it is
// new and whether the file is another one now. The file is made where there is
// none. Comments and the order stay. Changes that are made at the same time, by
// other processes too, come one after the other. It may return *Error, or the
// cause of the context's end.
func SetContext(ctx context.Context, path, name string, ch Change) (added, changed bool, err error) {
	if name == "" {
		return false, false, errorf("", "the name of a context is empty")
	}
	changed, err = edit(ctx, path, func(path string, root *yaml.Node) error {
		list, err := contextList(path, root)
		if err != nil {
			return err
		}
		one := findContext(list, name)
		if added = one == nil; added {
			one = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			setScalar(one, keyName, name)
			list.Content = append(list.Content, one)
		}
		for _, k := range ch.Unset {
			removeKey(one, string(k))
		}
		for _, s := range Settings() {
			text, set := ch.Set[s.Key]
			if !set {
				continue
			}
			node, err := s.node(text)
			if err != nil {
				return errorf(string(s.Key), "%v", err)
			}
			// What it excludes goes.
			for _, other := range Settings() {
				if other.Group == s.Group && s.Group != "" && other.Key != s.Key {
					removeKey(one, string(other.Key))
				}
			}
			setNode(one, string(s.Key), node)
		}
		return nil
	})
	return added, changed, err
}

// UseContext makes a context the current one, and reports whether another one
// was. It may return *Error, or the cause of the context's end.
func UseContext(ctx context.Context, path, name string) (changed bool, err error) {
	return edit(ctx, path, func(path string, root *yaml.Node) error {
		if err := mustHave(path, name); err != nil {
			return err
		}
		setScalar(root, keyCurrent, name)
		return nil
	})
}

// DeleteContext removes a context, and reports whether it was the current one;
// none is then. It may return *Error, or the cause of the context's end.
func DeleteContext(ctx context.Context, path, name string) (wasCurrent bool, err error) {
	_, err = edit(ctx, path, func(path string, root *yaml.Node) error {
		if err := mustHave(path, name); err != nil {
			return err
		}
		list, err := contextList(path, root)
		if err != nil {
			return err
		}
		list.Content = slices.DeleteFunc(list.Content, func(n *yaml.Node) bool { return contextName(n) == name })
		if v := valueOf(root, keyCurrent); v != nil && v.Value == name {
			wasCurrent = true
			removeKey(root, keyCurrent)
		}
		return nil
	})
	return wasCurrent && err == nil, err
}

// mustHave returns an error unless a file is a valid one that has a context.
func mustHave(path, name string) error {
	c, err := Read(path)
	if err != nil {
		return err
	}
	_, err = c.Find(name)
	return err
}

// node is a setting as the file has it.
func (s Setting) node(text string) (*yaml.Node, error) {
	v, err := s.parseText(text)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case bool:
		return scalar("!!bool", map[bool]string{true: "true", false: "false"}[v]), nil
	case []string:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Style: yaml.FlowStyle}
		for _, e := range v {
			n.Content = append(n.Content, scalar("!!str", e))
		}
		return n, nil
	case string:
		if s.Kind == File && v != "" {
			if v, err = filepath.Abs(v); err != nil {
				return nil, err
			}
		}
		return scalar("!!str", v), nil
	}
	return nil, errors.New("has no form in the file")
}

func scalar(tag, text string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(text)
	n.Tag = tag
	return n
}

// edit changes a file in one step: whoever reads it sees the old one or the new
// one, and no change of another process in between is lost. It is checked before
// it takes the place of the old one. change is given the path of the file itself,
// which is not that of a link to it. It reports whether there was anything to
// change.
func edit(ctx context.Context, path string, change func(path string, root *yaml.Node) error) (bool, error) {
	if path == "" {
		return false, errorf("", "there is no place for a configuration file").advise("set KSHARE_CONFIG to a path; HOME is not set")
	}
	path = linked(path)
	// Another file would take its place: who may do that to /dev/null would have
	// none any more, and a pipe would never end.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return false, errorf(path, "is no regular file, and nothing can be written to it").advise("set KSHARE_CONFIG to the path of a file")
	}
	unlock, err := lock(ctx, path)
	if err != nil {
		return false, err
	}
	defer unlock()
	var doc yaml.Node
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, fileError(path, "read", err)
	default:
		if err := checkKeys(path, data); err != nil {
			return false, err
		}
		if err := yaml.Unmarshal(data, &doc); err != nil {
			return false, syntaxError(path, err)
		}
	}
	if doc.Kind == 0 {
		// A file without keys may have comments.
		doc = yaml.Node{Kind: yaml.DocumentNode, HeadComment: strings.TrimSpace(strings.TrimPrefix(string(data), "\ufeff")), Content: []*yaml.Node{{Kind: yaml.MappingNode, Tag: "!!map"}}}
	}
	root := doc.Content[0]
	if root.Tag == "!!null" {
		*root = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", HeadComment: root.HeadComment, FootComment: root.FootComment}
	}
	if root.Kind != yaml.MappingNode {
		return false, errorf(path, "has no keys")
	}
	if err := change(path, root); err != nil {
		return false, err
	}
	var b bytes.Buffer
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := errors.Join(enc.Encode(&doc), enc.Close()); err != nil {
		return false, errorf(path, "%v", err)
	}
	if bytes.Equal(b.Bytes(), data) {
		return false, nil
	}
	return true, replace(path, b.Bytes())
}

// linked is the path of the file that a link leads to, so that the link stays one,
// also where the file is still to be made.
func linked(path string) string {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	target, err := os.Readlink(path)
	switch {
	case err != nil:
		return path
	case filepath.IsAbs(target):
		return target
	}
	return filepath.Join(filepath.Dir(path), target)
}

// lock waits until no other process changes a file. What says so is a file beside
// it that stays: if it went, one process could wait for it, and another make it
// anew.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fileError(dir, "make directory", err)
	}
	l := flock.New(filepath.Join(dir, "."+filepath.Base(path)+".lock"), flock.SetFlag(os.O_CREATE|os.O_RDWR), flock.SetPermissions(0o600))
	_, err = l.TryLockContext(ctx, lockInterval)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, errors.ErrUnsupported): // a file system without locks
		err = nil
	case err != nil:
		err = fileError(dir, "make a file in the directory", err)
	}
	if err != nil {
		_ = l.Close() // there is another error to tell
		return nil, err
	}
	return func() { _ = l.Close() }, nil
}

// lockInterval is the time between two looks whether another process is done.
const lockInterval = 10 * time.Millisecond

// replace writes a file that only its owner may read, beside the old one, checks
// it, and puts it in place.
func replace(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".config-*.yaml") // 0600
	if err != nil {
		return fileError(dir, "make a file in the directory", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fileError(path, "write", err)
	}
	if _, err = Read(f.Name()); err != nil {
		var e *Error
		if errors.As(err, &e) {
			return errorf(path, "would no longer be valid: %s", e.Reason).advise("'kshare config check' looks at the file")
		}
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return fileError(path, "replace", err)
	}
	return nil
}

// valueOf returns the node of a key of a mapping, nil if it is not there.
func valueOf(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			return m.Content[i+1]
		}
	}
	return nil
}

func setNode(m *yaml.Node, key string, v *yaml.Node) {
	if old := valueOf(m, key); old != nil {
		v.LineComment, v.HeadComment, v.FootComment = old.LineComment, old.HeadComment, old.FootComment
		*old = *v
		return
	}
	m.Content = append(m.Content, scalar("!!str", key), v)
}

func setScalar(m *yaml.Node, key, text string) { setNode(m, key, scalar("!!str", text)) }

func removeKey(m *yaml.Node, key string) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content = slices.Delete(m.Content, i, i+2)
			return
		}
	}
}

// contextList returns the node of the contexts, which it makes where there is
// none.
func contextList(path string, root *yaml.Node) (*yaml.Node, error) {
	n := valueOf(root, keyContexts)
	switch {
	case n == nil || n.Tag == "!!null":
		setNode(root, keyContexts, &yaml.Node{Kind: yaml.SequenceNode})
		return valueOf(root, keyContexts), nil
	case n.Kind != yaml.SequenceNode: // or what is there would be lost
		return nil, notAList(path)
	}
	n.Style &^= yaml.FlowStyle
	return n, nil
}

func findContext(list *yaml.Node, name string) *yaml.Node {
	for _, n := range list.Content {
		if contextName(n) == name {
			return n
		}
	}
	return nil
}

func contextName(n *yaml.Node) string {
	if v := valueOf(n, keyName); v != nil {
		return v.Value
	}
	return ""
}
