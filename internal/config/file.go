package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// Path is where the configuration file is: $KSHARE_CONFIG, else kshare/config.yaml
// in the user's configuration directory; "" where there is neither.
func Path(getenv func(string) string, userDir func() (string, error)) string {
	if p := getenv("KSHARE_CONFIG"); p != "" {
		return p
	}
	if userDir == nil {
		return ""
	}
	dir, err := userDir()
	if err != nil {
		return "" // no HOME: there is no file, then
	}
	return filepath.Join(dir, "kshare", "config.yaml")
}

// Contexts is what a configuration file holds. The zero value is that of a file
// that does not exist.
type Contexts struct {
	Path    string
	Exists  bool
	Current string // "" if none is
	All     []ContextValues
	// WiderThan0600 is set where others may read the file and it has secrets.
	WiderThan0600 bool
}

// ContextValues is a named context.
type ContextValues struct {
	Name   string
	values map[Key]value
}

// Names returns the names of all contexts, in the order of the file.
func (c *Contexts) Names() []string {
	names := make([]string, 0, len(c.All))
	for _, x := range c.All {
		names = append(names, x.Name)
	}
	return names
}

// Find returns a context; an *Error when there is none of that name.
func (c *Contexts) Find(name string) (ContextValues, error) {
	i := slices.Index(c.Names(), name)
	if i >= 0 {
		return c.All[i], nil
	}
	e := errorf("", "there is no context %q", name)
	switch {
	case c.Path == "":
		return ContextValues{}, e.advise("there is no configuration file either, since neither HOME nor KSHARE_CONFIG is set")
	case !c.Exists:
		return ContextValues{}, e.advise("%s does not exist; 'kshare config set-context %s' makes it", c.Path, plain(name, "NAME"))
	case len(c.All) == 0:
		return ContextValues{}, e.advise("%s has no contexts; 'kshare config set-context %s' adds one", c.Path, plain(name, "NAME"))
	}
	if i := slices.IndexFunc(c.Names(), func(n string) bool { return strings.EqualFold(n, name) }); i >= 0 {
		return ContextValues{}, e.advise("did you mean %q? upper and lower case differ", c.Names()[i])
	}
	return ContextValues{}, e.advise("%s has %s", c.Path, strings.Join(c.Names(), ", "))
}

// plain is a word of a command line that is to be copied: text where no shell sees
// more in it, and otherwise what stands for it.
func plain(text, otherwise string) string {
	if regexp.MustCompile(`^[A-Za-z0-9_./][A-Za-z0-9_./-]*$`).MatchString(text) {
		return text
	}
	return otherwise
}

// The keys of the file.
const (
	keyCurrent  = "current_context"
	keyContexts = "contexts"
	keyName     = "name"
)

// noDelimiter is for viper, which would take the dots in keys for levels.
const noDelimiter = "\x00"

// Read reads a configuration file. One that does not exist has no contexts. It
// may return *Error.
func Read(path string) (*Contexts, error) {
	c := &Contexts{Path: path}
	if path == "" {
		return c, nil
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotDir) {
		return c, nil
	}
	if err != nil {
		return nil, fileError(path, "read", err)
	}
	c.Exists = true
	if err := checkKeys(path, data); err != nil {
		return nil, err
	}
	v := viper.NewWithOptions(viper.KeyDelimiter(noDelimiter))
	v.SetConfigType("yaml")
	if err := v.ReadConfig(bytes.NewReader(data)); err != nil {
		return nil, syntaxError(path, err)
	}
	if err := c.fill(v.AllSettings()); err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && c.hasSecrets() {
		c.WiderThan0600 = runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0
	}
	return c, nil
}

// fileError leaves the name out of the error of the system, since the message
// has it already.
func fileError(path, what string, err error) *Error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err
	}
	return errorf(path, "%s: %v", what, err)
}

// syntaxError says where a file is no YAML. What yaml says of it may have a part
// of a value in it.
func syntaxError(path string, err error) *Error {
	where := path
	if m := regexp.MustCompile(`line ([0-9]+)`).FindStringSubmatch(err.Error()); m != nil {
		where += ":" + m[1]
	}
	return errorf(where, "is not valid YAML").
		advise("look for a key that is there twice, for the indentation, and for a value that wants quotes")
}

// checkKeys refuses what viper passes over in silence: a second document, and the
// case of keys. "Contexts" would be the contexts until something else writes
// "contexts", and either of them could count then.
func checkKeys(path string, data []byte) error {
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return syntaxError(path, err)
	}
	switch err := dec.Decode(new(yaml.Node)); {
	case err == nil:
		return errorf(path, "has more than one YAML document").advise("put all contexts under one %q", keyContexts)
	case !errors.Is(err, io.EOF):
		return syntaxError(path, err)
	}
	root := doc.Content[0]
	if key := notLower(root); key != "" {
		return noKey(path, key)
	}
	list := valueOf(root, keyContexts)
	if list == nil {
		return nil
	}
	for _, n := range list.Content {
		if key := notLower(n); key != "" {
			return unknownKey(fmt.Sprintf("%s: context %q", path, contextName(n)), key)
		}
	}
	return nil
}

// notLower returns the first key of a mapping that is not in lower case.
func notLower(m *yaml.Node) string {
	if m.Kind != yaml.MappingNode {
		return ""
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if key := m.Content[i].Value; key != strings.ToLower(key) {
			return key
		}
	}
	return ""
}

// noKey is the error about a key of the file that is none.
func noKey(path, key string) *Error {
	e := errorf(path, "there is no key %q", key)
	for _, known := range []string{keyCurrent, keyContexts} {
		if strings.EqualFold(known, key) {
			return e.advise("did you mean %s?", known)
		}
	}
	return e.advise("the keys are %s and %s; settings belong to a context", keyCurrent, keyContexts)
}

func notAList(path string) *Error {
	return errorf(path+": "+keyContexts, "want a list of contexts, each with a %s", keyName)
}

func (c *Contexts) fill(all map[string]any) error {
	for _, key := range sortedKeys(all) {
		var err error
		switch key {
		case keyCurrent:
			name, ok := all[key].(string)
			if !ok && all[key] != nil {
				err = errorf(c.Path+": "+keyCurrent, "want the name of a context: put quotes around it")
			}
			c.Current = name
		case keyContexts:
			err = c.fillContexts(all[key])
		default:
			err = noKey(c.Path, key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Contexts) fillContexts(x any) error {
	if x == nil {
		return nil
	}
	list, ok := x.([]any)
	if !ok {
		return notAList(c.Path)
	}
	for i, x := range list {
		m, ok := x.(map[string]any)
		if !ok {
			return errorf(c.Path+": "+keyContexts, "entry %d has no keys", i+1)
		}
		ctx, err := c.newContext(i, m)
		if err != nil {
			return err
		}
		if slices.Contains(c.Names(), ctx.Name) {
			return errorf(c.Path+": "+keyContexts, "%q is there twice", ctx.Name)
		}
		c.All = append(c.All, ctx)
	}
	return nil
}

func (c *Contexts) newContext(i int, m map[string]any) (ContextValues, error) {
	name, ok := m[keyName].(string)
	if !ok || name == "" {
		return ContextValues{}, errorf(c.Path+": "+keyContexts, "entry %d has no %s, which is a text", i+1, keyName)
	}
	where := fmt.Sprintf("%s: context %q", c.Path, name)
	ctx := ContextValues{Name: name, values: make(map[Key]value)}
	for _, k := range sortedKeys(m) {
		if k == keyName {
			continue
		}
		s, ok := Find(Key(k))
		if !ok || !s.InContext() {
			return ctx, unknownKey(where, k)
		}
		v, err := s.parseAny(m[k])
		if err != nil {
			return ctx, errorf(where+": "+k, "%v", err)
		}
		if path, ok := v.(string); ok && s.Kind == File {
			v = c.absolute(path)
		}
		ctx.values[s.Key] = v
	}
	return ctx, checkGroups(where, ctx.values)
}

// absolute makes a path in the file one that starts where the file is.
func (c *Contexts) absolute(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(c.Path), path)
}

// unknownKey suggests the key that was meant.
func unknownKey(where, key string) *Error {
	e := errorf(where, "there is no setting %q", key)
	if strings.EqualFold(key, keyName) {
		return e.advise("did you mean %s?", keyName)
	}
	if s, ok := nearest(key); ok && s.InContext() {
		return e.advise("did you mean %s?", s.Key)
	}
	return e.advise("'kshare help settings' lists them")
}

// checkGroups refuses several settings of which one counts.
func checkGroups(where string, values map[Key]value) error {
	seen := make(map[Key]Key)
	for _, s := range Settings() {
		if _, set := values[s.Key]; !set || s.Group == "" {
			continue
		}
		if other, ok := seen[s.Group]; ok {
			return errorf(where, "%s and %s exclude each other", other, s.Key)
		}
		seen[s.Group] = s.Key
	}
	return nil
}

func (c *Contexts) hasSecrets() bool {
	return slices.ContainsFunc(c.All, func(x ContextValues) bool {
		for k := range x.values {
			if s, _ := Find(k); s.Kind == Secret {
				return true
			}
		}
		return false
	})
}

func sortedKeys[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
