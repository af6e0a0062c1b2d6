package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Change is a change to a context.
type Change struct {
	Set   map[Key]string // text as a flag has it; paths are made absolute
	Unset []Key
}

// SetContext changes a context of a file, or adds it, and reports whether it is
// new and whether the file is another one now. The file is made where there is
// none. Comments and the order stay. It may return *Error.
func SetContext(path, name string, ch Change) (added, changed bool, err error) {
	if name == "" {
		return false, false, errorf("", "the name of a context is empty")
	}
	changed, err = edit(path, func(root *yaml.Node) error {
		list := child(root, keyContexts, yaml.SequenceNode)
		ctx := findContext(list, name)
		if added = ctx == nil; added {
			ctx = &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
			setScalar(ctx, keyName, name)
			list.Content = append(list.Content, ctx)
		}
		for _, k := range ch.Unset {
			removeKey(ctx, string(k))
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
					removeKey(ctx, string(other.Key))
				}
			}
			setNode(ctx, string(s.Key), node)
		}
		return nil
	})
	return added, changed, err
}

// UseContext makes a context the current one, and reports whether another one
// was. It may return *Error.
func UseContext(path, name string) (changed bool, err error) {
	c, err := Read(path)
	if err != nil {
		return false, err
	}
	if _, err := c.Find(name); err != nil {
		return false, err
	}
	return edit(path, func(root *yaml.Node) error {
		setScalar(root, keyCurrent, name)
		return nil
	})
}

// DeleteContext removes a context, and reports whether it was the current one;
// none is then. It may return *Error.
func DeleteContext(path, name string) (wasCurrent bool, err error) {
	c, err := Read(path)
	if err != nil {
		return false, err
	}
	if _, err := c.Find(name); err != nil {
		return false, err
	}
	_, err = edit(path, func(root *yaml.Node) error {
		list := child(root, keyContexts, yaml.SequenceNode)
		list.Content = slices.DeleteFunc(list.Content, func(n *yaml.Node) bool { return contextName(n) == name })
		if c.Current == name {
			removeKey(root, keyCurrent)
		}
		return nil
	})
	return c.Current == name, err
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
// one. It is checked before it takes the place of the old one. It reports whether
// there was anything to change.
func edit(path string, change func(root *yaml.Node) error) (bool, error) {
	if path == "" {
		return false, errorf("", "there is no place for a configuration file").advise("set KSHARE_CONFIG to a path; HOME is not set")
	}
	// A link stays one.
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	var doc yaml.Node
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, fileError(path, "read", err)
	default:
		if err := yaml.Unmarshal(data, &doc); err != nil {
			return false, syntaxError(path, err)
		}
	}
	if doc.Kind == 0 {
		doc = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode, Tag: "!!map"}}}
	}
	root := doc.Content[0]
	if root.Tag == "!!null" {
		*root = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", HeadComment: root.HeadComment, FootComment: root.FootComment}
	}
	if root.Kind != yaml.MappingNode {
		return false, errorf(path, "has no keys")
	}
	if err := change(root); err != nil {
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

// replace writes a file that only its owner may read, beside the old one, checks
// it, and puts it in place.
func replace(path string, data []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fileError(dir, "make directory", err)
	}
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

// child returns the node of a key, which it makes, or makes anew where it has
// nothing.
func child(m *yaml.Node, key string, kind yaml.Kind) *yaml.Node {
	if n := valueOf(m, key); n != nil && n.Kind == kind {
		n.Style &^= yaml.FlowStyle
		return n
	}
	n := &yaml.Node{Kind: kind}
	setNode(m, key, n)
	return valueOf(m, key)
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
